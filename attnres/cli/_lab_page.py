"""The page and figures that every command of the lab ends with."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rich.console import Console

from attnres.lab.record import Record
from attnres.report.lab import write_results


def draw_page(console: Console, records: Mapping[str, Record], out: Path) -> Path:
    """Write out/results.html and out/figures/*.png from the records by kind. Returns the page's path."""
    with console.status("drawing"):
        return write_results(records, out)
