"""A table of texts: the terminal, a page and a document show the same one."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class TextTable:
    """Names stand left, numbers right."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


def number(value: float | None, form: str, unit: str = "") -> str:
    """Write a number; nothing for None."""
    if value is None:
        return ""
    return f"{value:{form}}{unit}" if math.isfinite(value) else "not finite"
