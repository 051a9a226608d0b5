"""Tables, numbers and names as text, the same for a terminal, a page and a document."""

from __future__ import annotations

import math
import unicodedata
from dataclasses import dataclass


@dataclass(frozen=True)
class TextTable:
    """Names are on the left, numbers on the right."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


def number(value: float | None, form: str, unit: str = "") -> str:
    """Write a number, a rounded zero without a minus; nothing for None. form: as `format` takes it, of a float."""
    if value is None:
        return ""
    sign = "+" if form.startswith("+") else ""
    return f"{value:{sign}z{form.removeprefix(sign)}}{unit}" if math.isfinite(value) else "not finite"


def duration(seconds: float) -> str:
    """Write how long something takes: 40 s, 1.5 minutes, 12 minutes, 3.4 hours."""
    for unit, length in (("hours", 3600), ("minutes", 60)):
        if seconds >= 1.45 * length:
            amount = seconds / length
            return f"{amount:.1f} {unit}" if amount < 9.5 else f"{amount:.0f} {unit}"
    return f"{seconds:.0f} s"


def visible(text: str, keep: str = "") -> str:
    """The text with nothing hidden in it: control and formatting characters become symbols or their code points.

    A terminal would obey them, in a name as well as in what a model draws. keep: those that stay as they are.
    """
    return "".join(character if character in keep else _visible_character(character) for character in text)


def _visible_character(character: str) -> str:
    code = ord(character)
    if code < 0x20:
        return "⏎" if character == "\n" else chr(0x2400 + code)
    if unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp"):
        return f"[U+{code:04X}]"
    return character
