"""Write the report's files, each of them at once or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from attnres.report.data import ReportData
from attnres.report.figures import figures
from attnres.report.page import page


def write_report(data: ReportData, folder: Path | str) -> Path:
    """Write `folder`/report.html, which needs no other file, and `folder`/figures/*.png. Returns the page's path."""
    folder = Path(folder)
    (folder / "figures").mkdir(parents=True, exist_ok=True)
    drawn = figures(data)
    for name, image in drawn.items():
        write_file(folder / "figures" / name, image)
    path = folder / "report.html"
    write_file(path, page(data).encode())
    return path


def write_file(path: Path, content: bytes) -> None:
    """Atomically: a reader sees the old file or the new one, also after a crash."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
