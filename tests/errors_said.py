"""What a process wrote on standard error."""

from __future__ import annotations


def without_notes(text: str) -> list[str]:
    """Its lines, but for the note of a machine without a compiler."""
    return [line for line in text.splitlines() if "no CPU kernel" not in line]
