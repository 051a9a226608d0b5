"""The engine of the experiments: points x seeds x learning rates, each trained once.

The record is written whenever a run has ended, so the same command continues after any stop, and with the record alone
on another machine.
"""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from attnres.errors import UsageError
from attnres.lab.runs import (
    Record,
    RunResult,
    command,
    header,
    measured,
    read_record,
    write_record,
)

if TYPE_CHECKING:
    from attnres.lab.options import PairedOptions
    from attnres.train import RunConfig
    from attnres.train.sweep import JobState

TUNING_SEED = 1000
"""Learning rates are chosen on seeds from this on: choosing on a reported one would favour the arm tuned most."""


class ProgressDisplay(Protocol):
    """What is said while an experiment runs; the command line shows it."""

    def __call__(self, done: float, total: float, what: str) -> None:
        """Show how far it is, in any unit. what: what is being done."""
        ...

    def say(self, line: str) -> None:
        """Print one line."""
        ...

    def during(self, what: str) -> AbstractContextManager[Callable[[str], object]]:
        """Show that something takes its time. What it yields is called with how far it is."""
        ...


@dataclass(frozen=True)
class Planned:
    """A run that is to be trained: its place in the record, and how it is made."""

    arm: str
    seed: int
    config: RunConfig
    folder: Path
    at: str = ""
    rate: float = 1.0
    part: str = "runs"
    cost: float = 1.0
    """Of one step, in any unit, for the time left."""
    measured: Mapping[str, Any] = field(default_factory=dict)
    """What the record says of it, however it ends."""

    def ended(self, **fields: Any) -> RunResult:
        place = {name: getattr(self, name) for name in ("arm", "seed", "at", "rate", "part")}
        return RunResult(**place, steps=self.config.steps, measured=self.measured, **fields)

    @property
    def key(self) -> tuple[object, ...]:
        return self.part, self.arm, self.at, self.rate, self.seed

    @property
    def name(self) -> str:
        return self.ended(status="unfinished").name


@dataclass(frozen=True)
class SweepEnd:
    """What a call of an experiment leaves."""

    record: Record
    failed: str = ""
    """One line for each run that was not finished and should have been."""
    notes: Sequence[str] = ()
    """Lines to be shown below the tables."""


class Incomplete(Exception):
    """Some of the runs failed from which learning rates were to be chosen; its argument is what the call leaves."""


class Sweep:
    """Trains runs that have not ended yet, and makes the record of all that have.

    Args:
        kind: The experiment's name.
        options: Those that all experiments have.
        settings: What all runs have in common; of its "config" what decides no loss may differ.
        file: The record's.
        out: The folder of the runs.
        measure: What is measured of each run that is done, after the training.
        sort: In what order the record has its runs.

    Raises:
        UsageError: the record is another sweep's.
    """

    def __init__(
        self,
        kind: str,
        options: PairedOptions,
        settings: Mapping[str, Any],
        file: Path,
        out: Path,
        progress: ProgressDisplay,
        measure: Callable[[Planned], Mapping[str, Any]] | None = None,
        sort: Callable[[RunResult], Any] = lambda run: 0,
    ) -> None:
        from attnres.data import check_length, open_corpus

        self.kind, self.settings = kind, json.loads(json.dumps(settings))
        self.arms, self.workers = options.arms, options.workers
        self.file, self.out, self.progress, self.measure, self.sort = file, out, progress, measure, sort
        with progress.during("opening the corpus"):  # before any worker, so that bad text is one error and not many
            self.corpus = open_corpus(options.config.data)
            check_length(self.corpus, options.config.model.context)
        self.places = "--out" if file.parent == out else "--record and --out"
        self.failed: list[JobState] = []
        self.newest: Mapping[str, Any] | None = None
        """config.json of the last run that this call has added."""
        self.earlier = read_record(file, kind) if file.exists() else None
        if self.earlier:
            self._refuse_other(self.earlier)
        self.ran = {run.key: run for run in self.earlier.runs} if self.earlier else {}
        self.found = dict(self.earlier.found) if self.earlier else {}
        self.whole, self.spent = 0.0, 0.0

    def _refuse_other(self, there: Record) -> None:
        """Raise UsageError if a command may not go on with these runs: what it would add does not compare."""
        from attnres.connections import file_digest
        from attnres.train.folder import RunFolder

        where, instead = self.file, f"or choose another {self.places}"
        if names := differing(there.settings, self.settings):
            raise UsageError(
                f"{where} holds a sweep with another {' and another '.join(names)}; repeat its options to go on with "
                f"it, {instead}"
            )
        text = self.corpus.sha256
        if (recorded := there.corpus.get("sha256")) not in (None, text):
            raise UsageError(
                f"{where} holds runs on another text, {there.corpus.get('description')}, whose hash begins with "
                f"{recorded:.8}; the hash of this text begins with {text:.8}. Restore the recorded text, {instead}"
            )
        start = there.config.get("start_from")
        if there.start and start and RunFolder(start).weights() not in (None, there.start):
            raise UsageError(
                f"{start} has other weights than when the runs in {where} began with them, as after more training; put "
                f"those back, {instead}"
            )
        for arm, digest in there.files.items():
            if arm in self.arms and file_digest(arm) != digest:
                raise UsageError(f"the file of {arm} has changed since its runs in {where}; restore it, {instead}")

    def announce(self, planned: Sequence[Planned]) -> None:
        """Say how many runs there are before any is trained. A grid that is made wider has more."""
        tokens = sum(one.config.steps * one.config.tokens_per_step for one in planned) / 1e6
        self.whole = sum(one.cost * one.config.steps for one in planned)
        text = f"{len(planned)} runs, {tokens:.1f} million tokens in all, {self.workers} at a time: {self.out}"
        self.progress.say(text)

    def train(self, planned: Sequence[Planned], what: str = "runs") -> list[RunResult]:
        """How the runs ended, after those are trained that have not ended yet. What ended is kept at once.

        Raises UsageError where every run of several failed.
        """
        from attnres.train import sweep

        missing = {one.name: one for one in planned if not self.has(one)}
        if len(missing) < len(planned):
            self.whole -= sum(one.cost * one.config.steps for one in planned if one.name not in missing)
            told = f"{len(planned) - len(missing)} of {len(planned)} runs are there already"
            self.progress.say(f"{what}: {told} ({self.file})")
        if missing:
            steps = sorted({one.config.steps for one in missing.values()})
            told = str(steps[0]) if len(steps) == 1 else f"{steps[0]} to {steps[-1]}"
            self.progress.say(f"{what}: {len(missing)} runs of {told} steps")
            jobs = [sweep.Job(name, one.config, one.folder) for name, one in missing.items()]
            sweep.refuse_other_texts(jobs, self.corpus)
            try:
                states = sweep.run_jobs(jobs, self.workers, _Pace(self, missing))
                sweep.require_done(states)
                for number, state in enumerate(states):
                    one = missing[state.job.name]
                    if not self.has(one):
                        if self.measure:
                            self.progress(number, len(states), f"measuring {one.name}")
                        self.end(one, state)
            finally:
                self.save()
            self.failed += [state for state in states if state.status == "failed" and not state.diverged]
        return [self.ran[one.key] for one in planned]

    def has(self, one: Planned) -> bool:
        """Whether it is known how that run ended."""
        run = self.ran.get(one.key)
        return run is not None and run.status in ("done", "diverged")

    def end(self, one: Planned, state: JobState) -> None:
        """Keep how a run ended, and what is measured of it."""
        from attnres.train.folder import RunFolder

        run = ended(one, state)
        if run.done and self.measure:
            run = dataclasses.replace(run, measured=measured({**run.measured, **self.measure(one)}))
        self.ran[one.key] = run
        if run.status in ("done", "diverged"):
            self.newest = RunFolder(one.folder).record()
            self.save()

    def find(self, **found: Any) -> None:
        """Keep what was measured that is of no single run."""
        self.found |= measured(found)
        self.save()

    def tune(
        self,
        make: Callable[[str, str, float], Planned],
        cells: Sequence[tuple[str, str]],
        grid: Sequence[float],
        wider: int = 0,
    ) -> dict[tuple[str, str], list[RunResult]]:
        """Try every rate of the grid in every cell, and up to `wider` times one more where the best lies at an edge.

        Args:
            make: (arm, at, rate) -> a run of the tuning.
            cells: (arm, at) of each.

        Raises:
            Incomplete: a run failed; a grid is whole before a rate is chosen from it.
        """
        runs: dict[tuple[str, str], list[RunResult]] = {cell: [] for cell in cells}
        wanted = {cell: list(grid) for cell in cells}
        for number in range(1 + wider):
            tried = [make(*cell, rate) for cell, rates in wanted.items() for rate in rates]
            for run in self.train(tried, "tuning beyond the edge" if number else "tuning") if tried else []:
                runs[run.arm, run.at].append(run)
            self.require_whole()
            wanted = {cell: [rate] for cell, of in runs.items() if (rate := beyond(of)) is not None}
        return runs

    def require_whole(self) -> None:
        """Raise Incomplete if a run failed."""
        if self.failed:
            told = "Learning rates are chosen when all of these are done; the same command tries them again."
            raise Incomplete(self.ended([told]))

    def leave_out(self, part: str, rates: Mapping[tuple[str, str], Sequence[float]]) -> None:
        """Leave out runs of that part at other rates than these of their arm and place: a mean is of runs at one."""
        for key, run in list(self.ran.items()):
            if run.part == part and run.rate not in rates.get((run.arm, run.at), [run.rate]):
                self.progress.say(f"left out, it has another learning rate than now: {run.name}")
                del self.ran[key]

    def record(self) -> Record:
        """The record of what has ended, in this and earlier calls."""
        from attnres.connections import file_digest

        runs = tuple(sorted(self.ran.values(), key=self.sort))
        earlier_arms, files = (self.earlier.arms, dict(self.earlier.files)) if self.earlier else ((), {})
        have_runs = {run.arm for run in runs}
        arms = tuple(arm for arm in dict.fromkeys([*self.arms, *earlier_arms]) if arm in have_runs)
        files |= {arm: digest for arm in arms if arm in self.arms and (digest := file_digest(arm))}
        fields: dict[str, Any] = {"files": files, "found": self.found, "arms": arms, "runs": runs}
        if self.earlier and not self.newest:
            if arms[0] != self.earlier.arms[0]:
                fields["command"] = command()  # another baseline
            return dataclasses.replace(self.earlier, **fields)
        return Record(kind=self.kind, settings=self.settings, **header(self.newest or {}, runs), **fields)

    def save(self) -> None:
        """Write the record, if there is anything to be recorded."""
        if self.newest or self.earlier:
            write_record(self.file, self.record())

    def ended(self, notes: Sequence[str] = ()) -> SweepEnd:
        from attnres.train.sweep import failures

        return SweepEnd(self.record(), failures(self.failed), notes)


class _Pace:
    """Keeps what ends while others are trained, and tells how far they are."""

    def __init__(self, sweep: Sweep, runs: Mapping[str, Planned]) -> None:
        self.sweep, self.runs = sweep, runs
        self.steps: dict[str, int] = {}

    def __call__(self, states: Sequence[JobState]) -> None:
        sweep = self.sweep
        for state in states:
            one = self.runs[state.job.name]
            if state.job.name not in self.steps:  # what it has from before is no measure of this machine
                sweep.whole -= one.cost * state.step
                self.steps[state.job.name] = state.step
            # A killed run goes on from its checkpoint, behind the steps that it had logged: what rises was computed.
            sweep.spent += one.cost * max(0, state.step - self.steps[state.job.name])
            self.steps[state.job.name] = state.step
            ended = state.status == "done" or state.diverged
            if ended and not sweep.measure and one.key not in sweep.ran:
                sweep.end(one, state)
        losses = [state.loss for state in states if state.status == "running" and state.loss is not None]
        of = f"{sum(state.status == 'done' for state in states)} of {len(states)} runs"
        sweep.progress(sweep.spent, sweep.whole, f"{of}, loss {losses[-1]:.3f}" if losses else of)


def ended(one: Planned, state: JobState) -> RunResult:
    """How that run ended, from its folder."""
    from attnres.train.folder import RunFolder

    folder = RunFolder(one.folder)
    record = folder.record() or {"corpus": {}, "versions": {}, "machine": {}}  # one that failed at once has none
    per_byte = (record["corpus"] or {}).get("bytes_per_token", 1.0)
    curve = tuple((each["step"], each["loss"] / per_byte) for each in folder.evaluations())
    of_all = {"curve": measured(curve), "commit": record["versions"].get("commit"), "gpu": record["machine"].get("gpu")}
    if state.status != "done":
        return one.ended(status="diverged" if state.diverged else "failed", error=state.error, **of_all)
    summary = folder.summary()
    if summary is None:
        raise UsageError(
            f"{one.folder}: its result was deleted after the run ended; repeat the command to train it again"
        )
    loss = summary["validation_loss"] / per_byte
    status = "done" if has_learned([before for _, before in curve], loss) else "diverged"
    costs = {name: measured(summary[name]) for name in ("step_seconds", "peak_memory_bytes")}
    return one.ended(status=status, loss=measured(loss), **costs, **of_all)


def has_learned(evaluations: Sequence[float], last: float) -> bool:
    """Whether a run's last loss is below its first evaluation, if it had one; a loss that is not a number is not."""
    return not evaluations or last < evaluations[0]


def differing(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """The names of what two sweeps, or runs, have set otherwise, of a "config" field by field.

    A field of the configuration that one does not name has its default; those that decide no loss may differ.
    """
    from attnres.train import config_from_json, config_to_json
    from attnres.train.folder import FREE_FIELDS
    from attnres.train.jsonconfig import flat_fields

    def flat(settings: Mapping[str, Any]) -> dict[str, Any]:
        config = flat_fields(config_to_json(config_from_json(settings.get("config", {}))))
        return {**config, **{name: value for name, value in settings.items() if name != "config"}}

    one, two = flat(old), flat(new)
    return [name for name in {**one, **two} if one.get(name) != two.get(name) and name not in FREE_FIELDS]


def choose(runs: Sequence[RunResult]) -> float | None:
    """The rate of lowest mean loss among those that ran on most seeds, none of them unfinished; None without any."""
    losses: dict[float, list[float]] = {}
    for run in runs:
        losses.setdefault(run.rate, []).append(run.loss if run.done else math.inf)
    finished = {rate: of for rate, of in losses.items() if math.isfinite(sum(of))}
    return min(finished, key=lambda rate: (-len(finished[rate]), statistics.mean(finished[rate])), default=None)


def beyond(runs: Sequence[RunResult]) -> float | None:
    """The rate to try next where the best one has no neighbour on one side: as far from it as the one on the other.

    None where it has both, where only one was tried, and where none trains.
    """
    best, rates = choose(runs), sorted({run.rate for run in runs})
    if best is None or len(rates) < 2 or rates[0] < best < rates[-1]:
        return None
    neighbour = rates[1] if best == rates[0] else rates[-2]
    return rounded(best * best / neighbour)


def rounded(rate: float) -> float:
    """Three digits: folders carry it in their names."""
    return float(f"{rate:.3g}")
