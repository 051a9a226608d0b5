from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """What `attnres throw` asks for."""

    dice: int = 2
    """How many dice."""
