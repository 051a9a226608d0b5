"""What `attnres retrofit` asks for."""

from __future__ import annotations

from dataclasses import dataclass

from attnres.lab.options import Arms, Config
from attnres.model import TransformerConfig
from attnres.train import OptimizerConfig, RunConfig
from attnres.train.workers import default_workers

PLAIN = "residual"
ARMS = (
    PLAIN,
    "x0",
    "block",
    "block@1",
    "full",
    "full@1",
    "rms-block",
    "rms-block@1",
    "delta:block_size=4",
    "delta:block_size=4@1",
)
# transformers' own layers, start and optimizer, because the answer is for models that are attached to.
DEFAULTS = RunConfig(
    model=TransformerConfig(backbone="llama", layers=6, heads=4, context=128, connection=PLAIN, embedding_std=0.02),
    optimizer=OptimizerConfig(hidden="adamw", lr=2e-3, adamw_lr=2e-3),
    steps=600,
    validation_tokens=32_768,
)


@dataclass(frozen=True)
class Options:
    """What `attnres retrofit` asks for."""

    arms: Arms = ARMS
    """Connections as NAME or NAME:OPTION=VALUE,OPTION=VALUE, before all options; NAME@N trains the connection at N
    times the model's learning rate, 10 where nothing is said. The first is residual, the plain twin."""
    fractions: tuple[float, ...] = (0.05, 0.2, 1.0)
    """How long the training goes on, as shares of the plain model's steps. An arm whose steps take more operations has
    fewer of them, so that all spend what the plain twin spends."""
    seeds: int = 3
    """Paired seeds: seed, seed + 1, .., each with a plain model of its own."""
    grid: tuple[float, ...] = (0.25, 0.5, 1.0)
    """Multiples of the learning rates of the plain model (optimizer.lr and optimizer.adamw-lr together) that every arm
    tries. Where the best lies at an edge the next one beyond is tried too, at most three times."""
    tuning_seeds: int = 1
    """Seeds to choose the rates on, none of them reported."""
    workers: int = default_workers()
    """Runs at a time, each with one thread."""
    config: Config = DEFAULTS
    """The run of the plain model."""
