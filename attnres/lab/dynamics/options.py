"""What `attnres dynamics` asks for."""

from __future__ import annotations

from dataclasses import dataclass

from attnres.lab.options import Arms, Config
from attnres.train import RunConfig
from attnres.train.workers import default_workers

ARMS = ("residual", "x0", "block", "full", "hc", "mhc")
DEFAULTS = RunConfig(steps=160, batch_size=4, evaluate_every=40, save_every=20, validation_tokens=32_768)


@dataclass(frozen=True)
class Options:
    """What `attnres dynamics` asks for."""

    arms: Arms = ARMS
    """Connections as NAME or NAME:OPTION=VALUE,OPTION=VALUE, before all options. The first is the baseline."""
    seeds: int = 3
    """Paired seeds: seed, seed + 1, .."""
    workers: int = default_workers()
    """Runs at a time, each with one thread."""
    config: Config = DEFAULTS
