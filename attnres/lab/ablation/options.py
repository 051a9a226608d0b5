"""What `attnres ablate` asks for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from attnres.lab.options import Arms, Config
from attnres.train import RunConfig
from attnres.train.workers import default_workers

Equal = Literal["steps", "operations", "seconds"]

ARMS = (
    "residual",
    "block",
    "full",
    "x0",
    "denseformer",
    "mhc",
    "hc",
    "window",
    "full:query=input",
    "full:mixing=static",
    "full:weighting=sigmoid",
    "full:key_norm=false",
    "full:heads=16",
    "block:block_size=2",
    "block:block_size=8",
    "block:block_size=16",
    "block:key_norm=false",
    "block:heads=16",
    "mhc-lite",
    "identity-hc",
    "rezero",
    "highway",
    "rms-residual",
    "rms-block",
    "rms-full",
    "delta:block_size=4",
    "rms-block:pending=normalised",
    "delta",
    "rms-block:block_size=8",
    "rms-block:reads=qkv-gate-up",
    "block:reads=qkv-gate-up",
    "haares",
    "kromhc",
)
"""In the order in which a budget buys them."""

# Evaluated at the start and the end: nothing is drawn from what lies between, and it is a fifth of a run's time.
DEFAULTS = RunConfig(steps=160, batch_size=4, evaluate_every=160, validation_tokens=32_768)


@dataclass(frozen=True)
class Options:
    """What `attnres ablate` asks for."""

    arms: Arms = ARMS
    """Connections as NAME or NAME:OPTION=VALUE,OPTION=VALUE, before all options. The first is the baseline."""
    seeds: int = 3
    """Paired seeds: seed, seed + 1, .."""
    grid: tuple[float, ...] = (0.5, 1.0, 2.0)
    """Multiples of the learning rates (optimizer.lr and optimizer.adamw-lr together) to choose from."""
    wider: int = 0
    """How often an arm tries one multiple more where its best one lies at an edge of what it tried."""
    tuning_seeds: int = 2
    """Seeds to choose the rates on; only the best two of the grid run on more than the first."""
    equal: Equal = "steps"
    """What all arms spend alike: steps, or the first one's operations (the connection's are counted too) or seconds.
    An arm that takes more of them per token has fewer steps, and its schedule spans those.
    Seconds of a step are measured by turns before the runs: let the machine do nothing else then."""
    embedding_stds: tuple[float, ...] = (1.0, 0.02)
    """Scales of the embedding, each a table of its own."""
    budget: str | None = None
    """Time to spend, such as 30m or 2h: the arms are taken in order while they fit."""
    workers: int = default_workers()
    """Runs at a time, each with one thread."""
    config: Config = DEFAULTS
