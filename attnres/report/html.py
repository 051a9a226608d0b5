"""HTML through jinja2: every text is escaped, and nothing in it is hidden."""

from __future__ import annotations

from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from attnres.report.style import visible


def environment(package: str) -> Environment:
    """Return the templates beside the modules of a package, such as "attnres.report"."""
    return Environment(
        loader=PackageLoader(package, "."),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _shown(value: Any) -> Any:
    """Control and formatting characters become visible; markup of our own stays as it is."""
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value
