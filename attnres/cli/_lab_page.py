"""What every command of the lab begins and ends with: places that can be written, the page and its figures."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console

from attnres.errors import UsageError
from attnres.lab.record import Record, read_record
from attnres.report.lab import write_results


def record_path(kind: str, record: Path | None, out: Path) -> Path:
    """Where the record goes, OUT/KIND.json if not given, once it is certain that it and `out` can be written.

    Raises UsageError or OSError, before hours of training, and where the file is not a record of that kind.
    """
    path = out / f"{kind}.json" if record is None else record
    for folder in (out, path.parent):
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise UsageError(f"{folder}: it cannot be written; choose another --out or --record")
    if path.is_dir():
        raise UsageError(f"{path}: it is a folder; give --record the name of a file")
    if path.exists():
        try:
            read_record(path, kind)
        except UsageError as error:
            raise UsageError(f"{error}; choose another --record") from error
    return path


def draw_page(console: Console, records: Mapping[str, Record], out: Path) -> Path:
    """Write out/results.html and out/figures/*.png from the records by kind. Returns the page's path."""
    with console.status("drawing"):
        return write_results(records, out)
