"""Draw the results page from the lab's records: no training, every table and figure.

    attnres report
    attnres report runs/ablate --out runs/page
    attnres report --tables

Reads the JSON records that `attnres ablate`, `scaling`, `dynamics` and `prune` wrote into a folder, under the names
ablation.json, scaling.json, dynamics.json and prune.json, and writes OUT/results.html and OUT/figures/*.png. With
--tables it prints all tables as one Markdown document, as it stands in docs/TABLES.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from attnres.cli._depth_report import print_line
from attnres.cli._lab_page import draw_page
from attnres.errors import UsageError
from attnres.lab.record import read_records
from attnres.report.tables import tables_page


def command(
    results: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RESULTS")] = Path("results"),
    out: Path = Path("report"),
    tables: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
) -> int:
    """Report.

    Args:
        results: The folder of the records.
        out: Where to write.
        tables: Print the tables as Markdown and write nothing.
    """
    records = read_records(results)
    if not records:
        raise UsageError(
            f"{results}: no ablation.json, scaling.json, dynamics.json or prune.json there; `attnres ablate`, "
            "`scaling`, `dynamics` and `prune` write them into their --out"
        )
    console = Console()
    if tables:
        print(tables_page(records, results), end="")
        return 0
    print_line(console, f"{', '.join(records)}: {draw_page(console, records, out)}")
    return 0
