"""What `attnres prune` asks for."""

from __future__ import annotations

from attnres.lab.options import RunsOptions as Options

__all__ = ["Options"]
