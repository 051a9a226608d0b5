"""Options that several experiments have, and what they must be."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated

import tyro

from attnres.errors import UsageError
from attnres.train import RunConfig

Arms = Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="ARM")]
Config = Annotated[RunConfig, tyro.conf.arg(name="")]
"""The run that all are made from; its options have no prefix."""


def check_arms(arms: Sequence[str], config: RunConfig) -> None:
    """Raise UsageError unless there are two arms that differ, and they alone say what the connection is."""
    if len(set(arms)) < max(2, len(arms)):
        raise UsageError("give at least two arms, each once; the first is the baseline")
    model = RunConfig().model
    if (config.model.connection, config.model.connection_options) != (model.connection, model.connection_options):
        raise UsageError("the arms name the connections: write them as NAME:OPTION=VALUE instead of --model.connection")


def check_seeds(seeds: int, workers: int) -> None:
    if seeds < 1 or workers < 1:
        raise UsageError(f"seeds and workers must be at least 1, not {seeds} and {workers}")


def check_positive(name: str, values: Sequence[float]) -> None:
    if not values or len(set(values)) < len(values) or not all(0 < value < math.inf for value in values):
        raise UsageError(f"{name}: give at least one positive number, each once")
