"""Runs and their record: everything that tables and figures are drawn from, small enough for the repository.

A record is one JSON object, of the same form for every experiment. Measured numbers have seven digits, what is not
finite is null, and fields that hold their default are left out.
"""

from __future__ import annotations

import dataclasses
import json
import math
import shlex
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

from attnres.analysis.comparison import on_common_seeds
from attnres.errors import UsageError
from attnres.files import write_text

STATUSES = ("done", "diverged", "failed", "unfinished")
DIGITS = 7
"""Those that are kept of a measured number: float32's."""


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """One run: where it belongs, how it ended, and what was measured of it."""

    arm: str
    """The connection, with its options."""
    seed: int
    at: str = ""
    """The place on the experiment's other axis, such as a size."""
    rate: float = 1.0
    """The multiple of both learning rates."""
    part: str = "runs"
    """"runs" are reported; "tuning": the rate was chosen from it; "check": the rate was checked with it."""
    status: str
    """"done"; "diverged" if it met a number that is not finite or ended no lower than it began; "failed" if it stopped
    for any other reason; "unfinished" if it has no result."""
    error: str = ""
    loss: float = math.nan
    """The last validation loss, in nats per byte."""
    steps: int = 0
    step_seconds: float | None = None
    peak_memory_bytes: int | None = None
    curve: tuple[tuple[float, float], ...] = ()
    """(step, validation loss)"""
    commit: str | None = None
    """The commit of its code."""
    gpu: str | None = None
    """What it was trained on; None for a CPU."""
    measured: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """The experiment's own numbers."""

    @property
    def done(self) -> bool:
        return self.status == "done"

    @property
    def key(self) -> tuple[object, ...]:
        """What tells it from all others of its experiment."""
        return self.part, self.arm, self.at, self.rate, self.seed

    @property
    def name(self) -> str:
        rate = f"lr x{self.rate:g}" if self.rate != 1 else ""
        return ", ".join(part for part in (self.arm, self.at, rate, f"seed {self.seed}") if part)


def done(runs: Iterable[RunResult]) -> list[RunResult]:
    """The runs that count: those that diverged or failed are left out."""
    return [run for run in runs if run.done]


def runs_text(runs: Iterable[RunResult]) -> str:
    """How many runs are done, and how many ended in any other way."""
    ended = [run.status for run in runs]
    others = [f"{ended.count(status)} {status}" for status in STATUSES[1:] if status in ended]
    return ", ".join([str(ended.count("done")), *others])


def rate_text(rate: float, tuning: Iterable[RunResult]) -> str:
    """A multiple of the default rates, with a star at the edge of what was tried."""
    tried = {run.rate for run in tuning}
    return f"x{rate:g}" + "*" * (len(tried) > 1 and rate in (min(tried), max(tried)))


@dataclass(frozen=True, kw_only=True)
class Record:
    """What an experiment has run and measured. Raises ValueError where it has no runs, or one of them twice."""

    kind: str
    """The experiment's name."""
    command: str
    date: str
    hours: float
    """Hours of computing, one thread each, summed over this and earlier calls."""
    versions: Mapping[str, Any]
    commits: tuple[str, ...] = ()
    """The commits of the runs' code, which differ where a sweep was taken up again later."""
    machine: Mapping[str, Any]
    corpus: Mapping[str, Any]
    config: Mapping[str, Any]
    """That of one of the runs."""
    files: Mapping[str, str] = field(default_factory=dict)
    """The hash of each arm's file, of arms that have one."""
    start: str | None = None
    """The checksum of the weights that the runs began with, if they had another run's."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What all runs have in common: a command with other settings does not go on with the record."""
    found: Mapping[str, Any] = field(default_factory=dict)
    """What was measured that is of no single run."""
    arms: tuple[str, ...]
    """The first is the baseline."""
    runs: tuple[RunResult, ...]

    def __post_init__(self) -> None:
        if not self.runs:
            raise ValueError("without runs")
        for key, count in Counter(run.key for run in self.runs).items():
            if count > 1 or key[1] not in self.arms:
                raise ValueError(f"with the run {key} {count} times, of the arms {', '.join(self.arms)}")

    def of(self, arm: str | None = None, at: str | None = None, part: str = "runs") -> list[RunResult]:
        """The runs of that part, of one arm or place or of all."""
        return [run for run in self.runs if run.part == part and arm in (None, run.arm) and at in (None, run.at)]

    def places(self, part: str = "runs") -> list[str]:
        return list(dict.fromkeys(run.at for run in self.runs if run.part == part))

    def losses(self, at: str | None = None) -> dict[str, dict[int, float]]:
        """arm -> seed -> loss, of the reported runs that are done."""
        arms = {arm: {run.seed: run.loss for run in done(self.of(arm, at))} for arm in self.arms}
        return {arm: losses for arm, losses in arms.items() if losses}

    def compared(self, at: str | None = None) -> dict[str, dict[int, RunResult]]:
        """arm -> seed -> run: the finished runs of the seeds that every arm with a finished run has.

        Seeds differ by more than arms do: where one arm has lost a run, means over what is left would not compare.
        """
        return on_common_seeds({arm: {run.seed: run for run in done(self.of(arm, at))} for arm in self.arms})

    @property
    def origin(self) -> dict[str, str]:
        """What was run, when and on what, to be shown. Hours on a GPU stand apart where some of the runs had one."""
        on_gpu = [run for run in self.runs if run.gpu]
        computing = f"{self.hours:.1f} hours of one thread"
        if on_gpu and len(on_gpu) < len(self.runs):
            hours = sum((run.step_seconds or 0.0) * run.steps for run in on_gpu) / 3600
            which = ", ".join(dict.fromkeys(run.at for run in on_gpu))
            cards = ", ".join(dict.fromkeys(str(run.gpu) for run in on_gpu))
            computing = (
                f"{self.hours - hours:.1f} hours of one thread, {hours:.1f} of {len(on_gpu)} runs of {which} on {cards}"
            )
        return {
            "command": self.command,
            "date": self.date,
            "commit": ", ".join(self.commits or [str(self.versions.get("commit"))]),
            "computing": computing,
            "machine": ", ".join(f"{name} {value}" for name, value in self.machine.items()),
            "corpus": f"{self.corpus.get('description')}, sha256 {self.corpus.get('sha256')}",
        }


def command() -> str:
    """The one that runs now."""
    return shlex.join(["attnres", *sys.argv[1:]])


def header(run_record: Mapping[str, Any], runs: Iterable[RunResult]) -> dict[str, Any]:
    """The fields of `Record` that say what this process has run: run_record is config.json of one of the runs."""
    runs = list(runs)
    return {
        "command": command(),
        "date": date.today().isoformat(),
        "hours": measured(sum((run.step_seconds or 0.0) * run.steps for run in runs) / 3600),
        "commits": tuple(dict.fromkeys(run.commit for run in runs if run.commit)),
        **{name: run_record[name] for name in ("versions", "machine", "corpus", "config")},
        "start": run_record.get("start"),
    }


def measured(value: Any) -> Any:
    """The value as JSON has it, its numbers rounded."""
    if isinstance(value, Mapping):
        return {str(key): measured(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [measured(item) for item in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) and math.isfinite(value) else value


def to_json(value: Any) -> Any:
    """A run or a record, or what stands in one, as JSON has it."""
    if dataclasses.is_dataclass(value):
        fields = {each.name: (getattr(value, each.name), _default(each)) for each in dataclasses.fields(value)}
        return {name: to_json(item) for name, (item, default) in fields.items() if not _same(item, default)}
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _default(of: dataclasses.Field) -> Any:
    return of.default if of.default_factory is dataclasses.MISSING else of.default_factory()


def _same(value: Any, default: Any) -> bool:
    return value == default or (value != value and default != default)  # NaN equals itself here


def run_from_json(data: Mapping[str, Any]) -> RunResult:
    def number(value: float | None) -> float:
        return math.nan if value is None else value

    curve = tuple((step, number(loss)) for step, loss in data.get("curve", ()))
    return RunResult(**{**data, "curve": curve, "loss": number(data.get("loss"))})


def write_record(path: Path, record: Record) -> None:
    """Write the record, atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(to_json(record), allow_nan=False) + "\n")


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file; empty where it holds something else. Raises UsageError if it is cut or damaged."""
    try:
        data = json.loads(path.read_bytes())
    except ValueError as error:
        raise UsageError(f"{path}: not valid JSON ({error}); put a copy back, or take it away") from error
    return data if isinstance(data, dict) else {}


def read_record(path: Path, kind: str) -> Record:
    """Read a record. Raises UsageError if the file is none of that experiment, or a damaged one."""
    data = read_object(path)
    if data.get("kind") != kind:
        raise UsageError(f"{path}: not a record of {kind}")
    try:
        runs = tuple(map(run_from_json, data["runs"]))
        return Record(**{**data, "commits": tuple(data.get("commits", ())), "arms": tuple(data["arms"]), "runs": runs})
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UsageError(
            f"{path}: a damaged record of {kind} ({error}); put a copy back, or delete it: the same command fills it "
            "again from its runs"
        ) from error
