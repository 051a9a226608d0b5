"""Draw the results page from the lab's records: no training, every table and figure.

    attnres report
    attnres report runs/ablate --out runs/page
    attnres report results/ladder-16.json --out runs/page
    attnres report --tables
    attnres report --numbers

Reads the JSON records that the lab's experiments (`attnres ablate`, `scaling`, `dynamics`) wrote into a
folder, under the names ablation.json, scaling.json, dynamics.json and any others that they were given,
or one of them, and writes OUT/results.html, a section for each, and OUT/figures/*.png. With --tables it prints all
tables as one Markdown document, as it stands in results/tables.md. With --numbers it looks up the numbers that the
documents cite (results/cited.toml), writes results/numbers.json and the tables of the pages, and says which lines have
another number than they should.
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
    numbers: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
) -> int:
    """Report.

    Args:
        results: The folder of the records, or the file of one.
        out: Where to write.
        tables: Print the tables as Markdown and write nothing.
        numbers: Look up the documents' numbers, and write nothing but them.
    """
    if numbers:
        return _look_up(results)
    from attnres.cli._checks import alone_in
    from attnres.cli._tables import Output, print_line
    from attnres.cli._terminal import working
    from attnres.lab import experiments
    from attnres.lab.page import read_records, tables_page, write_results

    if not results.exists():
        raise UsageError(f"{results}: there is no such folder or file; give one that holds records")
    records = read_records(results)
    if not records and results.is_file():
        raise UsageError(f"{results}: no record of an experiment; give a file that one has written, or its folder")
    if not records:
        known = experiments()
        raise UsageError(
            f"{results}: no {', '.join(f'{name}.json' for name in known)} there; "
            f"{', '.join(f'`attnres {one.command}`' for one in known.values())} write them into their --out"
        )
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


def _look_up(results: Path) -> int:
    from attnres.lab.numbers import CITED, Cited

    if not (results / CITED).is_file():
        raise UsageError(f"{results}: no {CITED} there, which says what the documents cite")
    cited = Cited(results)
    cited.write()
    faults = cited.faults()
    print(*faults, f"{len(cited.numbers)} numbers, {len(faults)} faults", sep="\n")
    return 1 if faults else 0
