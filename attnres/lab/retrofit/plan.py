"""Which runs a retrofit has: plain models trained to their end, and each of them trained on by every arm."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from attnres.connections import canonical_connection, connection_class
from attnres.connections._start import with_exact_start
from attnres.errors import UsageError, check_count
from attnres.lab.arms import arm_folder, arm_model
from attnres.lab.options import MOST_RUNS, check_positive, check_seeds, refuse_equal_arms
from attnres.lab.retrofit.options import PLAIN, Options
from attnres.lab.retrofit.record import Arm
from attnres.lab.tuning import TUNING_SEED
from attnres.train.sweep import Job

CONTINUED_SEED = 500
"""Beyond a model's seed: the text of the further training comes in an order of its own, the same for every arm."""


@dataclass(frozen=True)
class Plan:
    options: Options
    arms: Sequence[Arm]
    """The plain twin first."""
    out: Path

    @property
    def seeds(self) -> range:
        return range(self.options.config.seed, self.options.config.seed + self.options.seeds)

    @property
    def tuning_seeds(self) -> range:
        """None where there is nothing to choose."""
        first, options = self.options.config.seed + TUNING_SEED, self.options
        return range(first, first + options.tuning_seeds * (len(options.grid) > 1))


def plan(options: Options, out: Path) -> Plan:
    """Raises UsageError on bad options, arms among them."""
    arms = tuple(parse_arm(arm) for arm in options.arms)
    if options.config.model.connection != PLAIN:
        raise UsageError("what is trained on is a plain model; leave out --model.connection and name the arms")
    if [arm.name for arm in arms[:1]] != [PLAIN]:
        raise UsageError(f"the first arm is the plain twin, without which nothing can be said: write {PLAIN} first")
    refuse_equal_arms(options.arms, [(arm.connection, arm.rate) for arm in arms])
    check_seeds(options.seeds, options.workers)
    check_positive("grid", options.grid)
    check_positive("fractions", options.fractions, most=1e6)
    check_count("tuning_seeds", options.tuning_seeds, MOST_RUNS)
    chosen = Plan(options, arms, out)
    for arm in arms:
        for factor in options.grid:  # a rate may be too small or too large
            trial(chosen, arm, max(options.fractions), options.config.seed, factor)
        if not connection_class(arm.connection).pre_norm:
            raise UsageError(f"{arm.name} is defined on sublayers without a norm of their own; plain models have one")
    return chosen


def parse_arm(text: str) -> Arm:
    """An arm written NAME:OPTION=VALUE,OPTION=VALUE@N, with the options by which it starts as the plain model."""
    arm, at, factor = text.rpartition("@")
    if not at or set(factor) & set("/:"):  # none, or one in the path of a connection's file
        arm, at = text, ""
    if at and not (re.fullmatch(r"\d+(\.\d+)?", factor) and float(factor)):
        raise UsageError(f"arm {text!r}: write NAME, or NAME@N for N times the model's learning rate")
    rate = float(factor) if at else Arm.rate
    name = canonical_connection(arm)
    exact = canonical_connection(arm, **with_exact_start(arm, {}))
    return Arm(name=name if rate == Arm.rate else f"{name}@{rate:.15g}", connection=exact, rate=rate)


def plain_run(plan: Plan, seed: int) -> Job:
    """The training of the plain model that all arms of a seed begin with."""
    config = plan.options.config
    chosen = dataclasses.replace(config, seed=seed, evaluate_every=config.steps, save_every=config.steps, keep=1)
    return Job(f"plain model, seed {seed}", chosen, plan.out / "plain" / f"seed-{seed}")


@dataclass(frozen=True)
class Trial:
    """The further training of one plain model, with both learning rates times `factor`."""

    arm: Arm
    fraction: float
    seed: int
    factor: float
    job: Job


def trial(plan: Plan, arm: Arm, fraction: float, seed: int, factor: float, cost: float = 1.0) -> Trial:
    """Plan the run. cost: what a step of the arm takes of the plain twin's operations; both spend as many in all.

    Raises UsageError if the arm's connection or its options do not exist.
    """
    config = plan.options.config
    steps = max(1, round(fraction * config.steps / cost))
    optimizer = dataclasses.replace(
        config.optimizer,
        lr=factor * config.optimizer.lr,
        adamw_lr=factor * config.optimizer.adamw_lr,
        connection_rate=arm.rate,
    )
    chosen = dataclasses.replace(
        config,
        model=arm_model(arm.connection, config.model),
        optimizer=optimizer,
        start_from=os.fspath(plain_run(plan, seed).folder),
        seed=seed + CONTINUED_SEED,
        steps=steps,
        evaluate_every=steps,  # at its start, where nothing must be lost, and at its end
        save_every=steps,
        keep=1,
    )
    folder = arm_folder(plan.out / f"more-{fraction:g}", arm.name) / f"lr-{factor:g}" / f"seed-{seed}"
    name = f"{arm.name}, {percent(fraction)} more, lr x{factor:g}, seed {seed}"
    return Trial(arm, fraction, seed, factor, Job(name, chosen, folder))


def percent(fraction: float) -> str:
    return f"{100 * fraction:g}%"
