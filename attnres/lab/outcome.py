"""How a run of a sweep ended, as records keep it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from attnres.errors import UsageError
from attnres.train.folder import RunFolder
from attnres.train.sweep import JobState

STATUSES = ("done", "diverged", "failed", "unfinished")


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Raises ValueError where a run that is done has no loss."""

    status: str
    """"done"; "diverged" if it met a number that is not finite or ended no lower than it began; "failed" if it
    stopped for any other reason; "unfinished" if it has no result."""
    error: str = ""
    loss: float = math.nan
    """The last validation loss, in nats per byte."""
    step_seconds: float | None = None
    peak_memory_bytes: int | None = None
    curve: tuple[tuple[float, float], ...] = ()
    """(step, validation loss)"""
    commit: str | None = None
    """The commit of its code."""
    gpu: str | None = None
    """What it was trained on; None for a CPU."""

    def __post_init__(self) -> None:
        if self.status not in STATUSES:
            raise ValueError(f"with a status {self.status!r:.40}")
        if self.done and math.isnan(self.loss):
            raise ValueError("with no loss of a run that is done")

    @property
    def done(self) -> bool:
        return self.status == "done"


AnyOutcome = TypeVar("AnyOutcome", bound=Outcome)


def done_runs(runs: Iterable[AnyOutcome]) -> list[AnyOutcome]:
    """The runs that count: those that diverged or failed are left out."""
    return [run for run in runs if run.done]


def outcome_of(path: Path, state: JobState) -> Outcome:
    """How the run in that folder ended."""
    folder = RunFolder(path)
    run_record = folder.record() or {"corpus": {}, "versions": {}, "machine": {}}  # one that failed at once has none
    bytes_per_token = (run_record["corpus"] or {}).get("bytes_per_token", 1.0)
    curve = tuple((record["step"], record["loss"] / bytes_per_token) for record in folder.evaluations())
    end: dict[str, Any] = {"curve": curve, "commit": run_record["versions"].get("commit")}
    end["gpu"] = run_record["machine"].get("gpu")
    if state.status != "done":
        return Outcome(status="diverged" if state.diverged else "failed", error=state.error, **end)
    summary = folder.summary()
    if summary is None:
        raise UsageError(f"{path}: its result is gone since the run was done; repeat the command to train it again")
    loss = summary["validation_loss"] / bytes_per_token
    cost = {name: summary[name] for name in ("step_seconds", "peak_memory_bytes")}
    status = "done" if has_learned([before for _, before in curve], loss) else "diverged"
    return Outcome(status=status, loss=loss, **cost, **end)


def has_learned(evaluations: Sequence[float], last: float) -> bool:
    """Whether a run's last loss is below its first evaluation, if it had one; a loss that is not a number is not."""
    return not evaluations or last < evaluations[0]


def run_record_of(path: Path) -> dict[str, Any]:
    """config.json of a run. Raises UsageError where there is none."""
    record = RunFolder(path).record()
    if record is None:
        raise UsageError(f"{path}: the run's config.json is gone")
    return record
