"""Train the plain models, choose every arm's rates, train on, and record how every run ended."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from attnres.data import Corpus, check_length, open_corpus
from attnres.errors import UsageError
from attnres.lab.ahead import Ahead, Phase
from attnres.lab.experiment import Ended, Progress, steps_of
from attnres.lab.outcome import AnyOutcome, Outcome, outcome_of, run_record_of
from attnres.lab.record import config_pairs, files_of, header, read_record, refuse_other_sweep, write_record
from attnres.lab.retrofit.plan import Plan, Trial, percent, plain_run, trial
from attnres.lab.retrofit.record import Arm, ArmRecord, PlainRun, RetrofitRecord, TrialRun
from attnres.lab.tuning import MOST_BEYOND, beyond, choose
from attnres.model.flops import training_flops
from attnres.train import config_from_json
from attnres.train.folder import FREE_FIELDS, fit_vocabulary
from attnres.train.sweep import Job, JobState, failures, require_done


def run(plan: Plan, file: Path, progress: Progress) -> Ended[RetrofitRecord]:
    """Go from the shortest further training to the longest. From the first on the file holds what is done.

    It keeps what it has of other arms, shares and seeds. Raises UsageError if it is another sweep's, or before a rate
    would be chosen without a run that failed: what is done until then is in the file.
    """
    options = plan.options
    with progress.during("opening the corpus"):
        corpus = open_corpus(options.config.data)
        check_length(corpus, options.config.model.context)
    retrofit = _Retrofit(plan, progress, corpus.vocab_size, earlier(file, plan, corpus))
    progress.say(f"{retrofit.ahead.announced()}, {options.workers} at a time: {plan.out}")
    retrofit.train_plain()
    for fraction in sorted(options.fractions):
        factors = retrofit.tune(fraction)
        retrofit.train_on(fraction, factors)
        record = retrofit.record()
        write_record(file, record)
    return Ended(record, failures([state for state in retrofit.states if not state.diverged]))


def earlier(file: Path, plan: Plan, corpus: Corpus) -> RetrofitRecord | None:
    """The record that is there already. Raises UsageError if it is another sweep's."""
    if not file.exists():
        return None
    record, options = read_record(file, RetrofitRecord), plan.options
    there, here = config_from_json(dict(record.config)), fit_vocabulary(plain_run(plan, 0).config, corpus.vocab_size)
    own = (*FREE_FIELDS, "seed")  # of each plain model
    pairs = {name: pair for name, pair in config_pairs(there, here).items() if name not in own}
    pairs["seed"] = min(run.seed for run in record.plain), options.config.seed
    if record.grid:
        pairs |= {"grid": (record.grid, options.grid), "tuning_seeds": (record.tuning_seeds, options.tuning_seeds)}
    refuse_other_sweep(file, record, [arm.connection for arm in plan.arms], corpus.sha256, pairs)
    return record


def _joined(
    key: Callable[[AnyOutcome], Any], before: Iterable[AnyOutcome], new: Iterable[AnyOutcome]
) -> tuple[AnyOutcome, ...]:
    """One run for each key: the new one, unless it failed where there was a result."""
    joined = {key(run): run for run in before}
    joined |= {
        key(run): run for run in new if run.status != "failed" or not (key(run) in joined and joined[key(run)].done)
    }
    return tuple(joined.values())


class _Retrofit:
    """Trains, and makes the record of what was trained."""

    def __init__(self, plan: Plan, progress: Progress, vocabulary: int, before: RetrofitRecord | None) -> None:
        self.plan, self.progress = plan, progress
        self.before = before
        self.runs_before = list(before.runs) if before else []
        self.states: list[JobState] = []
        self.plain: list[PlainRun] = []
        self.tuning: list[TrialRun] = []
        self.runs: list[TrialRun] = []
        self.arms = [
            ArmRecord(
                **vars(arm),
                flops_per_token=training_flops(
                    fit_vocabulary(trial(plan, arm, 1.0, 0, 1.0).job.config, vocabulary).model
                ),
            )
            for arm in plan.arms
        ]
        self.ahead = Ahead(self._phases())

    def _phases(self) -> list[Phase]:
        """All runs in order, before any rate is chosen."""
        plan, seeds = self.plan, self.plan.tuning_seeds
        ahead = [Phase([plain_run(plan, seed) for seed in (*plan.seeds, *seeds)])]
        for fraction in sorted(plan.options.fractions):
            one_rate = [self._trial(arm, fraction, 0, 1.0).job for arm in plan.arms]
            if seeds:
                each = one_rate * len(seeds)
                ahead += [Phase(each * len(plan.options.grid)), *[Phase(each, certain=False)] * MOST_BEYOND]
            ahead.append(Phase(one_rate * len(plan.seeds)))
        return ahead

    def _trial(self, arm: Arm, fraction: float, seed: int, factor: float) -> Trial:
        flops = {one.name: one.flops_per_token for one in self.arms}
        return trial(self.plan, arm, fraction, seed, factor, flops[arm.name] / self.arms[0].flops_per_token)

    def train_plain(self) -> None:
        seeds = [*self.plan.seeds, *self.plan.tuning_seeds]
        jobs = [plain_run(self.plan, seed) for seed in seeds]
        states = self._train(jobs, ["plain model"] * len(jobs), "the plain models")
        for seed, state in zip(seeds, states, strict=True):
            self.plain.append(PlainRun(seed=seed, **vars(outcome_of(state.job.folder, state))))

    def tune(self, fraction: float) -> dict[str, float | None]:
        """Arm -> the multiple of the learning rates, None where none trains."""
        seeds, grid = self.plan.tuning_seeds, self.plan.options.grid
        if not seeds:
            return dict.fromkeys((arm.name for arm in self.plan.arms), grid[0])
        tried: dict[str, list[TrialRun]] = {arm.name: [] for arm in self.plan.arms}
        wanted = {arm: list(grid) for arm in self.plan.arms}
        for _ in range(1 + MOST_BEYOND):
            trials = [self._trial(arm, fraction, s, f) for s in seeds for arm in wanted for f in wanted[arm]]
            for ended in self._train_trials(trials, f"tuning for {percent(fraction)}"):
                if ended.status == "failed":
                    raise UsageError(
                        f"{ended.arm}, lr x{ended.factor:g}, seed {ended.seed}: {ended.error}; a rate is chosen when "
                        "the whole grid is done: repeat the command"
                    )
                tried[ended.arm].append(ended)
            following = {arm: beyond(tried[arm.name]) for arm in wanted}
            wanted = {arm: [factor] for arm, factor in following.items() if factor is not None}
        self.tuning += [run for of_arm in tried.values() for run in of_arm]
        return {name: choose(of_arm) for name, of_arm in tried.items()}

    def train_on(self, fraction: float, factors: dict[str, float | None]) -> None:
        trials = [
            self._trial(arm, fraction, seed, factor)
            for seed in self.plan.seeds
            for arm in self.plan.arms
            if (factor := factors[arm.name]) is not None
        ]
        if not trials:
            raise UsageError("no rate of --grid trains any arm; give smaller ones")
        for run in self.runs_before[:]:
            if run.fraction == fraction and factors.get(run.arm, run.factor) != run.factor:
                self.progress.say(
                    f"{run.arm}, {percent(fraction)}, seed {run.seed}: left out, it ran at x{run.factor:g}"
                )
                self.runs_before.remove(run)
        self.runs += self._train_trials(trials, f"{percent(fraction)} more steps")

    def _train_trials(self, trials: Sequence[Trial], what: str) -> list[TrialRun]:
        states = self._train([one.job for one in trials], [one.arm.name for one in trials], what)
        return [_recorded(one, state) for one, state in zip(trials, states, strict=True)]

    def _train(self, jobs: Sequence[Job], labels: Sequence[str], what: str) -> list[JobState]:
        """Raises UsageError where every run of several failed."""
        later = self.ahead.begin()
        if not jobs:
            return []
        self.progress.say(f"{what}: {len(jobs)} runs of {steps_of(jobs)} steps")
        states = self.progress.train(jobs, labels, self.plan.options.workers, later=later)
        require_done(states)
        self.states += states
        return states

    def record(self) -> RetrofitRecord:
        """The record of what was run so far, and of what the file held beside it."""
        before, options = self.before, self.plan.options
        plain = _joined(lambda run: run.seed, before.plain if before else (), self.plain)
        tuning = _joined(lambda run: (*_trial(run), run.factor), before.tuning if before else (), self.tuning)
        runs = _joined(_trial, self.runs_before, self.runs)
        everything: list[Outcome] = [*plain, *tuning, *runs]
        seconds = sum((one.step_seconds or 0.0) * one.curve[-1][0] for one in everything if one.curve)
        first = next(state.job.folder for state in self.states if state.status == "done")
        files = {**((before and before.files) or {}), **files_of(arm.connection for arm in self.arms)}
        return RetrofitRecord(
            **header(run_record_of(first), seconds, [one.commit for one in everything]),
            files=files or None,
            arms=tuple({arm.name: arm for arm in (*(before.arms if before else ()), *self.arms)}.values()),
            fractions=tuple(sorted({one.fraction for one in runs})),
            plain=plain,
            tuning=tuning,
            runs=runs,
            grid=tuple(options.grid),
            tuning_seeds=options.tuning_seeds,
        )


def _trial(run: TrialRun) -> tuple[str, float, int]:
    return run.arm, run.fraction, run.seed


def _recorded(one: Trial, state: JobState) -> TrialRun:
    """How the run ended. Further training that makes a model worse is a result, not a run that diverged."""
    fields: dict[str, Any] = {**vars(outcome_of(one.job.folder, state))}
    if state.status == "done" and math.isfinite(fields["loss"]):
        fields["status"] = "done"
    named = {"arm": one.arm.name, "fraction": one.fraction, "seed": one.seed, "factor": one.factor}
    return TrialRun(**fields, **named, steps=one.job.config.steps)
