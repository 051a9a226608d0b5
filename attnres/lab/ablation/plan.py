"""Which runs the ablation has: every connection, its learning rate tuned, at several embedding scales."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from attnres.data import Corpus
from attnres.errors import UsageError, check_count
from attnres.lab.ablation.cost import affordable_steps, seconds_of_a_run
from attnres.lab.ablation.options import Options
from attnres.lab.ablation.record import Cell, TrialRun
from attnres.lab.ahead import Phase
from attnres.lab.arms import arm_folder, arm_model
from attnres.lab.options import MOST_RUNS, check_positive, check_seeds, checked_arms
from attnres.lab.outcome import done_runs
from attnres.lab.tuning import TUNING_SEED, beyond
from attnres.train.sweep import Job

MOST_WIDER = 20


@dataclass(frozen=True)
class Plan:
    """The cells of the table, all of which exist."""

    options: Options
    cells: Sequence[Cell]
    seconds: float | None
    """The time to spend."""
    out: Path
    costs: Mapping[str, float] = field(default_factory=dict)
    """What a step of each arm takes of what counts, over the first one's; empty: all alike, or not known yet."""

    @property
    def steps(self) -> Mapping[str, int]:
        """Those of each arm. Raises UsageError where one has none."""
        return affordable_steps(self.options.config.steps, self.costs or dict.fromkeys(self.options.arms, 1.0))


def plan(options: Options, out: Path) -> Plan:
    """Raises UsageError on bad options, arms among them."""
    options = dataclasses.replace(options, arms=checked_arms(options.arms, options.config))
    check_seeds(options.seeds, options.workers)
    check_positive("grid", options.grid)
    check_positive("embedding_stds", options.embedding_stds)
    check_count("tuning_seeds", options.tuning_seeds, MOST_RUNS)
    if not 0 <= options.wider <= MOST_WIDER:
        raise UsageError(f"wider must be 0 to {MOST_WIDER}, not {options.wider}")
    seconds = None if options.budget is None else seconds_of(options.budget)
    cells = [Cell(arm, std) for std in options.embedding_stds for arm in options.arms]
    planned = Plan(options, cells, seconds, out)
    for cell in cells:
        trial(planned, cell, 1.0, options.config.seed)
    for factor in options.grid:  # a rate may be too small or too large
        trial(planned, cells[0], factor, options.config.seed)
    return planned


def seconds_of(text: str) -> float:
    """The seconds in 90s, 30m, 2h or 1.5h."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", text.strip())
    if not match or float(match[1]) == 0:
        raise UsageError(f"budget: write a time such as 30m or 2h, not {text!r}")
    return float(match[1]) * {"s": 1, "m": 60, "h": 3600}[match[2]]


@dataclass(frozen=True)
class Trial:
    """One run of a cell, with both learning rates times `factor`."""

    cell: Cell
    factor: float
    seed: int
    job: Job


def trial(plan: Plan, cell: Cell, factor: float, seed: int) -> Trial:
    """Raises UsageError if the cell's connection or its options do not exist."""
    config, steps = plan.options.config, plan.steps[cell.arm]
    optimizer = dataclasses.replace(
        config.optimizer, lr=factor * config.optimizer.lr, adamw_lr=factor * config.optimizer.adamw_lr
    )
    model = dataclasses.replace(arm_model(cell.arm, config.model), embedding_std=cell.embedding_std)
    # Only the last weights are kept: there are hundreds of runs.
    chosen = dataclasses.replace(
        config,
        model=model,
        optimizer=optimizer,
        seed=seed,
        steps=steps,
        evaluate_every=steps if config.evaluate_every == config.steps else config.evaluate_every,
        save_every=max(1, steps),
        keep=1,
    )
    folder = arm_folder(plan.out / f"std-{cell.embedding_std:g}", cell.arm) / f"lr-{factor:g}" / f"seed-{seed}"
    return Trial(cell, factor, seed, Job(f"{cell.name}, lr x{factor:g}, seed {seed}", chosen, folder))


def tuning_trials(plan: Plan, cells: Sequence[Cell]) -> list[Trial]:
    """One run for every cell and point of the grid; none if there is nothing to choose."""
    grid = plan.options.grid
    if len(grid) < 2:
        return []
    return [trial(plan, cell, factor, plan.options.config.seed + TUNING_SEED) for cell in cells for factor in grid]


def wider_trials(plan: Plan, tuned: Mapping[Cell, Sequence[TrialRun]]) -> list[Trial]:
    """One run for every cell whose best rate so far lies at an edge of what it tried."""
    seed = plan.options.config.seed + TUNING_SEED
    following = [(cell, beyond(outcomes)) for cell, outcomes in tuned.items()]
    return [trial(plan, cell, factor, seed) for cell, factor in following if factor is not None]


def playoff_trials(plan: Plan, tuned: Mapping[Cell, Sequence[TrialRun]]) -> list[Trial]:
    """The two best rates of each cell's grid on the other tuning seeds. One seed alone often chose by a few thousandths
    of a nat between rates whose means differ by several hundredths."""
    first = plan.options.config.seed + TUNING_SEED
    return [
        trial(plan, cell, run.factor, seed)
        for seed in range(first + 1, first + plan.options.tuning_seeds)
        for cell, outcomes in tuned.items()
        for run in sorted(done_runs(outcomes), key=lambda run: run.loss)[:2]
    ]


def final_trials(plan: Plan, chosen: Mapping[Cell, float]) -> list[Trial]:
    """Go seed by seed, so that a sweep that is stopped early has pairs for every arm."""
    first = plan.options.config.seed
    return [
        trial(plan, cell, factor, seed)
        for seed in range(first, first + plan.options.seeds)
        for cell, factor in chosen.items()
    ]


def phases(plan: Plan, cells: Sequence[Cell]) -> list[Phase]:
    """All runs of the cells in order, before any rate is chosen: the grid, what may come beyond it, the best two rates
    on the other tuning seeds, and the seeds."""
    of_each = [trial(plan, cell, 1.0, plan.options.config.seed).job for cell in cells]
    grid, others = [trial.job for trial in tuning_trials(plan, cells)], 2 * (plan.options.tuning_seeds - 1)
    tuned = of_each if grid else []
    beyond_the_edge = [Phase(tuned, certain=False)] * plan.options.wider
    return [Phase(grid), *beyond_the_edge, Phase(tuned * others), Phase(of_each * plan.options.seeds)]


def affordable(
    plan: Plan, cells: Sequence[Cell], seconds: float, corpus: Corpus
) -> tuple[list[Cell], dict[Cell, float]]:
    """The cells that fit into the time, taken in order, and every cell's estimated minutes.

    A cell costs all runs that it can have, at the measured time of a few steps of its own, on one thread; what is
    trained already is not taken off. A later cell that still fits is taken where an earlier one did not.
    """
    config, workers = plan.options.config, plan.options.workers
    chosen, left, minutes = [], seconds * workers, {}
    for cell in cells:
        job = trial(plan, cell, 1.0, config.seed).job
        runs = sum(len(phase.jobs) for phase in phases(plan, [cell]))
        cost = runs * seconds_of_a_run(job.config, corpus)
        minutes[cell] = cost / 60 / workers
        if cost <= left:
            left -= cost
            chosen.append(cell)
    return chosen, minutes
