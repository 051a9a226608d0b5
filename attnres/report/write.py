"""Write the report's files, each of them at once or not at all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from attnres.files import write_bytes
from attnres.report.data import ReportData
from attnres.report.figures import depth_picture, figures
from attnres.report.page import page

PAGE = "report.html"

FORMS: dict[str, Callable[[ReportData], bytes]] = {
    ".html": lambda data: page(data).encode(),
    ".png": lambda data: depth_picture(data, "png"),
    ".svg": lambda data: depth_picture(data, "svg"),
}
"""What one file can hold, by its suffix."""


def is_saved(path: Path) -> bool:
    """Whether that is a page of one run or a picture from matplotlib, and no other file of the user's."""
    head = path.read_bytes()[:1000]
    return b"<title>Depth in " in head or b"Matplotlib" in head


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
