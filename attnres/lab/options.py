"""Options that several experiments have, what they must be, and what an arm is: a connection with its options."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Self

import tyro

from attnres.connections import canonical_connection
from attnres.errors import UsageError, check_count
from attnres.lab.engine import Planned
from attnres.model import TransformerConfig
from attnres.train import RunConfig
from attnres.train.workers import default_workers

Arms = Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="ARM")]
Config = Annotated[RunConfig, tyro.conf.arg(name="")]
"""The run that all are made from; its options have no prefix."""


PLAIN = RunConfig()


@dataclass(frozen=True)
class PairedOptions:
    """What every experiment asks for that trains arms on paired seeds; its own options come behind these."""

    arms: Arms = ()
    """Connections as NAME or NAME:OPTION=VALUE,OPTION=VALUE, before all options. The first is the baseline."""
    seeds: int = 3
    """Paired seeds: seed, seed + 1, .."""
    workers: int = default_workers()
    """Runs at a time, each with one thread."""
    config: Config = PLAIN

    def checked(self) -> Self:
        """The same, the arms by their canonical names. Raises UsageError where no runs could be made of it."""
        check_count("seeds", self.seeds)
        check_count("workers", self.workers)
        return dataclasses.replace(self, arms=checked_arms(self.arms, self.config))

    @property
    def paired_seeds(self) -> range:
        return range(self.config.seed, self.config.seed + self.seeds)

    def run(
        self, arm: str, seed: int, rate: float = 1.0, model: TransformerConfig | None = None, **own: Any
    ) -> RunConfig:
        """The configuration of a run. model: all of it but the connection. own: its other fields.

        Raises UsageError if the connection or its options do not exist.
        """
        optimizer = self.config.optimizer
        rates = {"lr": rate * optimizer.lr, "adamw_lr": rate * optimizer.adamw_lr}
        of_run = {"model": arm_model(arm, model or self.config.model), "seed": seed}
        return dataclasses.replace(self.config, **of_run, optimizer=dataclasses.replace(optimizer, **rates), **own)


@dataclass(frozen=True)
class PairedPlan:
    """Every arm on every seed, seed by seed, so that a sweep that is stopped early has pairs for every arm."""

    options: Any
    runs: Sequence[Planned]
    out: Path


def paired_plan(options: PairedOptions, out: Path, **own: Any) -> PairedPlan:
    """own: fields of all runs' configurations. Raises UsageError on bad options, arms among them."""
    options = options.checked()
    runs = [
        Planned(arm, seed, options.run(arm, seed, **own), arm_folder(out, arm) / f"seed-{seed}")
        for seed in options.paired_seeds
        for arm in options.arms
    ]
    return PairedPlan(options, runs, out)


def checked_arms(arms: Sequence[str], config: RunConfig) -> tuple[str, ...]:
    """The arms by their canonical names.

    Raises:
        UsageError: an unknown arm, fewer than two that differ, or other options that say what the connection is.
    """
    names = tuple(canonical_connection(arm, config.model.sublayers) for arm in arms)
    for index, name in enumerate(names):
        if name in names[:index]:
            first = arms[names.index(name)]
            raise UsageError(f"the arms {first} and {arms[index]} are the same connection; give each once")
    if len(arms) < 2:
        raise UsageError("give at least two arms; the first is the baseline")
    if config.model.connection != PLAIN.model.connection:
        raise UsageError("the arms name the connections: write them as NAME:OPTION=VALUE instead of --model.connection")
    return names


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
