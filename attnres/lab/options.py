"""Options that several experiments have, what they must be, and what an arm is: a connection with its options."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import tyro

from attnres.connections import canonical_connection
from attnres.errors import UsageError, check_count
from attnres.model import TransformerConfig
from attnres.train import RunConfig

Arms = Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="ARM")]
Config = Annotated[RunConfig, tyro.conf.arg(name="")]
"""The run that all are made from; its options have no prefix."""


MOST_RUNS = 1000
"""Seeds, or workers: more of them are a slip of the finger."""


def checked_arms(arms: Sequence[str], config: RunConfig) -> tuple[str, ...]:
    """The arms by their canonical names.

    Raises:
        UsageError: an unknown arm, fewer than two that differ, or other options that say what the connection is.
    """
    names = tuple(canonical_connection(arm, config.model.sublayers) for arm in arms)
    folders: dict[Path, str] = {}
    for index, name in enumerate(names):
        if name in names[:index]:
            first = arms[names.index(name)]
            raise UsageError(f"the arms {first} and {arms[index]} are the same connection; give each once")
        if (other := folders.setdefault(arm_folder(Path(), name), arms[index])) != arms[index]:
            raise UsageError(f"the arms {other} and {arms[index]} would share one folder for their runs; rename a file")
    if len(arms) < 2:
        raise UsageError("give at least two arms; the first is the baseline")
    if config.model.connection != RunConfig().model.connection:
        raise UsageError("the arms name the connections: write them as NAME:OPTION=VALUE instead of --model.connection")
    return names


def check_seeds(seeds: int, workers: int) -> None:
    check_count("seeds", seeds, MOST_RUNS)
    check_count("workers", workers, MOST_RUNS)


def check_positive(name: str, values: Sequence[float]) -> None:
    apart = {f"{value:g}" for value in values}
    if not values or len(apart) < len(values) or not all(0 < value <= sys.float_info.max for value in values):
        raise UsageError(f"{name}: give at least one positive number, and none twice")


def arm_model(arm: str, model: TransformerConfig) -> TransformerConfig:
    """The model of an arm, written NAME:OPTION=VALUE,OPTION=VALUE. Raises UsageError on a bad name, option or form."""
    import torch  # not for the help of a command

    from attnres.connections import make_connection

    chosen = dataclasses.replace(model, connection=arm)
    with torch.device("meta"):  # refuses a bad value before any run starts
        make_connection(chosen.connection, chosen.dim, chosen.sublayers)
    return chosen


def arm_folder(out: Path, arm: str) -> Path:
    """Name an arm's folder. A connection's own file is told by all of its path, without a name that hides."""
    named = arm.lstrip(".")
    return out / ("_" * (len(arm) - len(named)) + named.translate(str.maketrans(":,/=", "___-")))
