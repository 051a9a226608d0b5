"""The HTML page: tables and texts are written here, charts are drawn by page.js from the embedded JSON."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attnres.files import write_bytes
from attnres.report.charts import Plot, payload
from attnres.report.draw import drawn
from attnres.report.html import environment, script, styles
from attnres.texttable import TextTable


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of a page, with a heading."""

    name: str
    """Its address on the page."""
    title: str
    text: str = ""
    answer: str = ""
    """What stands beside the title in the page's contents."""
    pictures: Sequence[Plot] = ()
    tables: Sequence[TextTable] = ()
    last: str = ""
    """What stands below the tables."""
    facts: Mapping[str, str] = field(default_factory=dict)
    """Where its numbers come from."""


def page(title: str, sections: Sequence[Section], subtitle: str = "") -> str:
    """The whole page as one string without references to anything outside it."""
    charts = script("report/page.js")
    # The browser runs this one script and loads nothing: a second lock behind the escaping.
    digest = base64.b64encode(hashlib.sha256(charts.encode()).digest()).decode()
    template = environment("attnres.report").get_template("page.html")
    return template.render(
        title=title,
        subtitle=subtitle,
        sections=sections,
        style=styles("report/charts/charts.css", "report/page.css"),
        script=charts,
        script_digest=digest,
        json=json_for_script([payload(picture) for section in sections for picture in section.pictures]),
    )


def json_for_script(value: Any) -> str:
    """Strict JSON that cannot end the script element it stands in, whatever texts it holds."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))  # ASCII: U+2028 and U+2029 are escaped
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def write_page(path: Path, html: str, pictures: Mapping[str, Plot]) -> Path:
    """Write the page, and next to it figures/NAME.png of the pictures. Returns the page's path.

    The page comes first: it says whose the figures beside it are.
    """
    images = {name: drawn(picture) for name, picture in pictures.items()}
    figures = path.parent / "figures"
    figures.mkdir(parents=True, exist_ok=True)
    write_bytes(path, html.encode())
    for name, image in images.items():
        write_bytes(figures / f"{name}.png", image)
    return path
