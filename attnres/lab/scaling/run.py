"""Train every connection at every size, and record loss, tokens and operations."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Sequence
from datetime import date
from pathlib import Path
from typing import Any, Literal

from attnres.data import Corpus, check_length, open_corpus
from attnres.errors import UsageError
from attnres.lab.ahead import Ahead
from attnres.lab.experiment import Ended, Progress
from attnres.lab.outcome import outcome_of, run_record_of
from attnres.lab.record import command, config_pairs, files_of, header, read_record, refuse_other_sweep, write_record
from attnres.lab.scaling.plan import Plan, Planned, planned, sized
from attnres.lab.scaling.rates import (
    CHECKED_AT,
    Rates,
    check_runs,
    chosen_rates,
    grid_runs,
    phases,
    rounded,
    seed_runs,
    wider_runs,
)
from attnres.lab.scaling.record import ScalingRecord, SizedRun, StepTimes, Sweep
from attnres.lab.steptime import ROUNDS, WARM_UP, median_steps
from attnres.lab.tuning import MOST_BEYOND
from attnres.model.flops import training_flops
from attnres.ops.cpu import instruction_set
from attnres.train import RunConfig, config_from_json, config_to_json
from attnres.train.environment import environment
from attnres.train.folder import RunFolder, fit_vocabulary
from attnres.train.sweep import Job, JobState, failures, require_done

Part = Literal["grid", "runs", "check"]
"""A field of the record that holds runs."""
PARTS: tuple[Part, ...] = ("grid", "runs", "check")


def run(plan: Plan, file: Path, progress: Progress) -> Ended[ScalingRecord]:
    """Go from the smallest size to the largest. What the file holds of this sweep is not trained again.

    A grid is whole before a rate is chosen from it: where one of its runs failed, nothing behind it is trained.
    The file gets what is done after every phase, and where the sweep is stopped. Raises UsageError if it is another
    sweep's.
    """
    options = plan.options
    with progress.during("opening the corpus"):
        corpus = open_corpus(options.config.data)
        check_length(corpus, options.config.model.context)
    sweep = _Sweep(plan, file, progress, corpus)
    progress.say(f"{sweep.ahead.announced()}, {options.workers} at a time: {plan.out}")
    grid = sweep.train("grid", grid_runs(plan))
    for _ in range(MOST_BEYOND):
        if not sweep.failed:
            grid += sweep.train("grid", wider_runs(plan, grid))
    if sweep.failed:
        note = "Learning rates are chosen when all of these runs are done; the same command tries them again."
        return Ended(sweep.record(), failures(sweep.failed), (note,))
    rates = chosen_rates(plan, grid)
    sweep.leave_out_other(rates)
    for size in plan.sizes:
        sweep.train("runs", seed_runs(plan, size, rates))
        sweep.train("check", check_runs(plan, size, rates))
    if options.time_steps:
        sweep.time_steps(corpus)
    return Ended(sweep.record(), failures(sweep.failed))


def earlier(file: Path, sweep: Sweep, plan: Plan, text: str) -> ScalingRecord | None:
    """The record that is there already, if a sweep can go on with it. Raises UsageError if it is another sweep's."""
    record = read_record(file, ScalingRecord) if file.exists() else None
    if record is None:
        return None
    if record.sweep is None:
        raise UsageError(f"{file} is from before a sweep's settings were kept; choose another --record and --out")
    arms, smallest = plan.options.arms, {size.name for size in plan.sizes[:2]}
    there = {run.size: run.steps for run in (*record.grid, *record.runs, *record.check)}
    here = {size.name: planned(plan, arms[0], size, 0).job.config.steps for size in plan.sizes}

    def in_common(sweep: Sweep) -> RunConfig:
        """Without what each size has of its own."""
        config = config_from_json(dict(sweep.config))
        return sized(config, plan.sizes[0], arms[0], plan.options.tokens_per_parameter, config.seed)

    refuse_other_sweep(
        file,
        record,
        arms,
        text,
        {
            **config_pairs(in_common(record.sweep), in_common(sweep)),
            "grid": (record.sweep.grid, sweep.grid),
            "heads": (record.sweep.heads, sweep.heads),
            "tokens_per_parameter": (here | there, there | here),
            "pair of smallest sizes": (smallest | {run.size for run in record.grid}, smallest),
        },
    )
    if plan.options.time_steps:
        there = [*record.arms, *dict.fromkeys(run.size for run in record.runs)]
        if missing := [name for name in there if name not in {*arms, *here}]:
            raise UsageError(
                f"--time-steps times all that {file} has by turns; name {', '.join(missing)} in the command, too"
            )
    return record


class _Sweep:
    """Trains the runs that the record does not have, and writes it."""

    def __init__(self, plan: Plan, file: Path, progress: Progress, corpus: Corpus) -> None:
        self.plan, self.file, self.progress, self.vocabulary = plan, file, progress, corpus.vocab_size
        self._counted: dict[str, float] = {}
        self.ahead = Ahead(phases(plan), self.flops)
        options = plan.options
        self.common = Sweep(config_to_json(options.config), options.grid, options.heads)
        self.earlier = earlier(file, self.common, plan, corpus.sha256)
        self.ran = {part: {_key(part, run): run for run in getattr(self.earlier, part, ())} for part in PARTS}
        self.step_times = self.earlier.step_times if self.earlier else None
        self.failed: list[JobState] = []
        self._newest: Path | None = None
        """A folder of a run that this call has seen done."""

    def train(self, part: Part, runs: Sequence[Planned]) -> list[SizedRun]:
        """How the runs ended, after those are trained that are done neither in the record nor in a folder.

        Raises UsageError where every run of several failed.
        """
        later = self.ahead.begin()
        missing = [one for one in runs if not self._has(part, one)]
        if len(missing) < len(runs):
            sizes = " and ".join(dict.fromkeys(one.size.name for one in runs))
            self.progress.say(f"{len(runs) - len(missing)} of {len(runs)} runs of {sizes} are in {self.file} already")
        if missing:
            jobs, labels = [one.job for one in missing], [f"{one.arm}, {one.size.name}" for one in missing]
            flops = [self.flops(job) for job in jobs]
            try:
                states = self.progress.train(jobs, labels, self.plan.options.workers, flops, later)
            except KeyboardInterrupt:
                done = [RunFolder(job.folder).summary() is not None for job in jobs]
                self._keep(part, [(one, JobState(one.job, status="done")) for one in itertools.compress(missing, done)])
                raise
            require_done(states)
            self._keep(part, zip(missing, states, strict=True))
        return [self.ran[part][_key(part, one)] for one in runs]

    def leave_out_other(self, rates: Rates) -> None:
        """Leave out the record's runs of these sizes at other rates: a mean is of runs at one rate."""
        for part, of in self.ran.items():
            for key, run in list(of.items()):
                rate = rates.get(run.arm, {}).get(run.size)
                if rate is None or part == "grid":
                    continue
                if run.factor not in ([rate] if part == "runs" else [rounded(rate * by) for by in CHECKED_AT]):
                    self.progress.say(f"{run.arm}, {run.size}, seed {run.seed}: left out, it ran at x{run.factor:g}")
                    del of[key]

    def time_steps(self, corpus: Corpus) -> None:
        """Time the steps of all arms, size by size, and write the record."""
        plan = self.plan
        seconds = {}
        with self.progress.bar(len(plan.sizes) * (WARM_UP + ROUNDS)) as advance:
            for size in plan.sizes:
                jobs = {arm: planned(plan, arm, size, plan.options.config.seed).job for arm in plan.options.arms}
                told = f"a step of every arm of {size.name}, by turns"
                configs = {arm: job.config for arm, job in jobs.items()}
                seconds[size.name] = median_steps(configs, corpus, ROUNDS, lambda told=told: advance(1, told))
        here = environment()
        machine = here["machine"] | {"threads": 1, "instruction set": instruction_set()}
        self.step_times = StepTimes(seconds, date.today().isoformat(), here["versions"]["commit"], machine)
        write_record(self.file, self.record())

    def flops(self, job: Job) -> float:
        """Operations per token, counted once for all seeds."""
        model = repr(job.config.model)
        if model not in self._counted:
            self._counted[model] = training_flops(fit_vocabulary(job.config, self.vocabulary).model)
        return self._counted[model]

    def record(self) -> ScalingRecord:
        """The record of what was run so far, by this and earlier calls, the smallest size first."""
        options = self.plan.options
        parts = {part: tuple(sorted(of.values(), key=lambda run: run.parameters)) for part, of in self.ran.items()}
        fields: dict[str, Any] = {"arms": tuple(dict.fromkeys([*options.arms, *getattr(self.earlier, "arms", ())]))}
        fields |= {"tokens_per_parameter": options.tokens_per_parameter, "sweep": self.common, **parts}
        fields["step_times"] = self.step_times
        fields["files"] = {**(getattr(self.earlier, "files", None) or {}), **files_of(options.arms)} or None
        if self._newest is None and self.earlier:
            if fields["arms"][0] != self.earlier.arms[0]:
                fields["command"] = command()  # another baseline
            return dataclasses.replace(self.earlier, **fields)
        everything = [run for of in parts.values() for run in of]
        seconds = sum((run.step_seconds or 0.0) * run.steps for run in everything)
        assert self._newest, "some run was done, or require_done had raised"
        return ScalingRecord(**header(run_record_of(self._newest), seconds, [r.commit for r in everything]), **fields)

    def _has(self, part: Part, one: Planned) -> bool:
        """Whether it is known how that run ended, at that rate: a record's rounded losses may move its last digit."""
        run = self.ran[part].get(_key(part, one))
        return run is not None and run.status in ("done", "diverged") and run.factor == one.factor

    def _keep(self, part: Part, ended: Iterable[tuple[Planned, JobState]]) -> None:
        """Take over how these runs ended, and write the record."""
        for one, state in ended:
            self.ran[part][_key(part, one)] = self._sized(one, state)
            if state.status == "done":
                self._newest = one.job.folder
            elif not state.diverged:
                self.failed.append(state)
        if self._newest:
            write_record(self.file, self.record())

    def _sized(self, one: Planned, state: JobState) -> SizedRun:
        config, outcome = one.job.config, outcome_of(one.job.folder, state)
        curve = tuple((step * config.tokens_per_step, loss) for step, loss in outcome.curve)
        fields: dict[str, Any] = vars(dataclasses.replace(outcome, curve=curve))
        return SizedRun(
            **fields,
            arm=one.arm,
            size=one.size.name,
            factor=one.factor,
            parameters=one.size.parameters,
            seed=one.seed,
            steps=config.steps,
            tokens=config.steps * config.tokens_per_step,
            flops_per_token=self.flops(one.job),
        )


def _key(part: Part, run: Planned | SizedRun) -> tuple[object, ...]:
    """Whose place in that part of the record a run takes: where rates are tried, each has its own."""
    size = run.size if isinstance(run, SizedRun) else run.size.name
    return (run.arm, size, run.seed) if part == "runs" else (run.arm, size, run.factor)
