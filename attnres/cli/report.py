"""Draw the results page from the lab's records: no training, every table and figure.

    attnres report
    attnres report runs/ablate --out runs/page
    attnres report results/ladder-16.json --out runs/page
    attnres report --tables

Reads the JSON records that the lab's experiments (`attnres ablate`, `scaling`, `dynamics`) wrote into a folder, under
the names ablation.json, scaling.json, dynamics.json and any others that they were given, or one of them, and writes
OUT/results.html, a section for each, and OUT/figures/*.png. With --tables it prints all tables as one Markdown
document, as in results/tables.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

from attnres.errors import UsageError


def command(
    results: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RESULTS")] = Path("results"),
    out: Path = Path("report"),
    tables: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
) -> int:
    """Report.

    Args:
        results: The folder of the records, or the file of one.
        out: Where to write.
        tables: Print the tables as Markdown and write nothing.
    """
    from attnres.cli._checks import alone_in
    from attnres.cli._tables import Output, print_line
    from attnres.cli._terminal import working
    from attnres.lab import experiment_commands
    from attnres.lab.page import read_records, tables_page, write_results

    if not results.exists():
        raise UsageError(f"{results}: there is no such folder or file; give one that holds records")
    records = read_records(results)
    if not records and results.is_file():
        raise UsageError(f"{results}: no record of an experiment; give a file that one has written, or its folder")
    if not records:
        commands = ", ".join(f"`attnres {name}`" for name in experiment_commands())
        raise UsageError(f"{results}: no record of an experiment there; {commands} write them into their --out")
    if tables:
        with working(Output(stderr=True), "making the tables"):
            page = tables_page(records, results)
        print(page, end="")
        return 0
    console = Output()
    with alone_in(out), working(console, "drawing"):
        page = write_results(records, out)
    print_line(console, f"{', '.join(records)}: {page}")
    return 0
