"""Options that several experiments have, and what they must be."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from attnres.connections import canonical_connection
from attnres.errors import UsageError, check_count
from attnres.lab.arms import arm_folder
from attnres.train import RunConfig

Arms = Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="ARM")]
Config = Annotated[RunConfig, tyro.conf.arg(name="")]
"""The run that all are made from; its options have no prefix."""


@dataclass(frozen=True)
class RunsOptions:
    """What a command that measures trained runs asks for."""

    folders: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN")] = ()
    """Run folders."""
    runs: Path | None = None
    """A folder of which every run inside is taken."""
    tokens: int = 16_384
    """Held-out tokens to measure on, the same ones for every run: whole sequences, at least one."""


MOST_RUNS = 1000
"""Seeds, or workers: more of them are a slip of the finger."""


def checked_arms(arms: Sequence[str], config: RunConfig) -> tuple[str, ...]:
    """The arms by their canonical names.

    Raises:
        UsageError: an unknown arm, fewer than two that differ, or other options that say what the connection is.
    """
    names = tuple(canonical_connection(arm) for arm in arms)
    refuse_equal_arms(arms, names)
    if config.model.connection != RunConfig().model.connection:
        raise UsageError("the arms name the connections: write them as NAME:OPTION=VALUE instead of --model.connection")
    return names


def refuse_equal_arms(arms: Sequence[str], identities: Sequence[object]) -> None:
    """Raise UsageError if two arms are the same, by what stands for each of them, or there are fewer than two, or two
    would have one folder."""
    for index, identity in enumerate(identities):
        if identity in identities[:index]:
            first = arms[identities.index(identity)]
            raise UsageError(f"the arms {first} and {arms[index]} are the same connection; give each once")
    if len(arms) < 2:
        raise UsageError("give at least two arms; the first is the baseline")
    folders: dict[Path, str] = {}
    for arm, identity in zip(arms, identities, strict=True):
        other = folders.setdefault(arm_folder(Path(), identity if isinstance(identity, str) else arm), arm)
        if other != arm:
            raise UsageError(f"the arms {other} and {arm} would have one folder for their runs; rename a file")


def check_seeds(seeds: int, workers: int) -> None:
    check_count("seeds", seeds, MOST_RUNS)
    check_count("workers", workers, MOST_RUNS)


def check_positive(name: str, values: Sequence[float], most: float = sys.float_info.max) -> None:
    if (
        not values
        or len({f"{value:g}" for value in values}) < len(values)
        or not all(0 < value <= most for value in values)
    ):
        limit = f" of at most {most:g}" if most < sys.float_info.max else ""
        raise UsageError(f"{name}: give at least one positive number{limit}, each once")
