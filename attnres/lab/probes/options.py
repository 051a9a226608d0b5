"""What `attnres probe` asks for."""

from __future__ import annotations

from dataclasses import dataclass

from attnres.lab.options import RunsOptions


@dataclass(frozen=True)
class Options(RunsOptions):
    """What `attnres probe` asks for."""

    tokens: int = 65_536
    """Held-out tokens to ask on, the same ones for every run: whole windows, at least one."""
