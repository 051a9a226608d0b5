"""Write the report's files, each of them at once or not at all."""

from __future__ import annotations

from pathlib import Path

from attnres.files import write_bytes
from attnres.report.data import ReportData
from attnres.report.figures import figures
from attnres.report.page import page

PAGE = "report.html"


def write_report(data: ReportData, folder: Path | str) -> Path:
    """Write `folder`/report.html, which needs no other file, and `folder`/figures/*.png. Returns the page's path.

    The page comes first: it says whose the figures beside it are.
    """
    folder = Path(folder)
    (folder / "figures").mkdir(parents=True, exist_ok=True)
    drawn = figures(data)
    path = folder / PAGE
    write_bytes(path, page(data).encode())
    for name, image in drawn.items():
        write_bytes(folder / "figures" / name, image)
    return path
