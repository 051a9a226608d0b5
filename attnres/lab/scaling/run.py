"""Train every connection at every size, and record loss, tokens and operations."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attnres.data import check_length, open_corpus
from attnres.lab.ahead import Ahead
from attnres.lab.experiment import Ended, Progress
from attnres.lab.outcome import outcome_of, run_record_of
from attnres.lab.record import header, write_record
from attnres.lab.scaling.plan import Plan, Planned
from attnres.lab.scaling.rates import CHECKED, check_runs, chosen_rates, grid_runs, phases, seed_runs, wider_runs
from attnres.lab.scaling.record import ScalingRecord, SizedRun, TrialRun
from attnres.lab.tuning import MOST_BEYOND
from attnres.model.flops import training_flops
from attnres.train.folder import fit_vocabulary
from attnres.train.sweep import Job, JobState, failures, require_done


def run(plan: Plan, file: Path, progress: Progress) -> Ended[ScalingRecord]:
    """Go from the smallest size to the largest. From the first one on the file holds a record of what is done."""
    options = plan.options
    with progress.during("opening the corpus"):
        corpus = open_corpus(options.config.data)
        check_length(corpus, options.config.model.context)
    sweep = _Sweep(plan, progress, corpus.vocab_size)
    progress.say(f"{sweep.ahead.announced()}, {options.workers} at a time: {plan.out}")
    grid = sweep.train(grid_runs(plan))
    for _ in range(MOST_BEYOND):
        grid += sweep.train(wider_runs(plan, [_trial(*ended) for ended in grid]))
    rates = chosen_rates(plan, [_trial(*ended) for ended in grid])
    runs, checked = [], []
    for number, size in enumerate(plan.sizes):
        runs += sweep.train(seed_runs(plan, size, rates))
        if number == CHECKED:
            checked = sweep.train(check_runs(plan, rates))
        record = sweep.record(runs, grid, checked)
        write_record(file, record)
    return Ended(record, failures([state for _, state in (*grid, *runs, *checked) if not state.diverged]))


Ran = tuple[Planned, JobState]


class _Sweep:
    """Trains runs and makes the record of them."""

    def __init__(self, plan: Plan, progress: Progress, vocabulary: int) -> None:
        self.plan, self.progress, self.vocabulary = plan, progress, vocabulary
        self._counted: dict[str, float] = {}
        self.ahead = Ahead(phases(plan), self.flops)

    def train(self, runs: Sequence[Planned]) -> list[Ran]:
        """Train what is not trained yet. Raises UsageError where every run of several failed."""
        later = self.ahead.begin()
        if not runs:
            return []
        labels = [f"{one.arm}, {one.size.name}" for one in runs]
        workers, flops = self.plan.options.workers, [self.flops(one.job) for one in runs]
        states = self.progress.train([one.job for one in runs], labels, workers, flops, later)
        require_done(states)
        return list(zip(runs, states, strict=True))

    def flops(self, job: Job) -> float:
        """Operations per token, counted once for all seeds."""
        model = repr(job.config.model)
        if model not in self._counted:
            self._counted[model] = training_flops(fit_vocabulary(job.config, self.vocabulary).model)
        return self._counted[model]

    def record(self, runs: Sequence[Ran], grid: Sequence[Ran], checked: Sequence[Ran]) -> ScalingRecord:
        """The record of what was run so far."""
        sized, tried, check = [self._sized(*ran) for ran in runs], *([_trial(*r) for r in of] for of in (grid, checked))
        everything = [*zip((*sized, *tried, *check), (*runs, *grid, *checked), strict=True)]
        seconds = sum((of.step_seconds or 0.0) * one.job.config.steps for of, (one, _) in everything)
        done = next(state.job.folder for _, state in runs if state.status == "done")
        options = self.plan.options
        return ScalingRecord(
            **header(run_record_of(done), seconds, [of.commit for of, _ in everything]),
            arms=tuple(options.arms),
            tokens_per_parameter=options.tokens_per_parameter,
            runs=tuple(sized),
            grid=tuple(tried),
            check=tuple(check),
        )

    def _sized(self, one: Planned, state: JobState) -> SizedRun:
        config = one.job.config
        return SizedRun(
            **vars(_trial(one, state)),
            parameters=one.size.parameters,
            seed=one.seed,
            steps=config.steps,
            tokens=config.steps * config.tokens_per_step,
            flops_per_token=self.flops(one.job),
        )


def _trial(one: Planned, state: JobState) -> TrialRun:
    outcome = outcome_of(one.job.folder, state)
    over_tokens = tuple((step * one.job.config.tokens_per_step, loss) for step, loss in outcome.curve)
    fields: dict[str, Any] = vars(dataclasses.replace(outcome, curve=over_tokens))
    return TrialRun(**fields, arm=one.arm, size=one.size.name, factor=one.factor)
