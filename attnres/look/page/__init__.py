"""The page: HTML, style and script, which know nothing of models and speak `attnres.look.messages` to the server."""

from __future__ import annotations

from importlib.resources import files

from attnres.report.html import script, styles


def served() -> dict[str, tuple[str, str]]:
    """All that the page consists of, by its path: (media type, text)."""
    return {
        "/": ("text/html", files("attnres.look.page").joinpath("page.html").read_text(encoding="utf-8")),
        "/page/look.css": ("text/css", styles("report/charts/charts.css", "look/page/look.css")),
        "/page/look.js": ("text/javascript", script("look/page/app.js")),
    }
