"""What is recorded of probes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from attnres.lab.outcome import Outcome
from attnres.lab.record import Record


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A task as it was asked of every run."""

    name: str
    what: str
    places: int
    """How many answers were asked for."""
    commonest: float
    """The share of them that the commonest answer would get right."""


@dataclass(frozen=True, kw_only=True)
class ProbedRun(Outcome):
    """A run; `right` is there if it is done. Raises ValueError where it is not."""

    arm: str
    seed: int
    right: tuple[float, ...] = ()
    """The share of right answers, task by task."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.done and not self.right:
            raise ValueError(f"with nothing measured of {self.arm}, seed {self.seed}")


@dataclass(frozen=True, kw_only=True)
class ProbesRecord(Record):
    kind: ClassVar = "probes"
    written_by: ClassVar = "probe"
    never_empty: ClassVar = ("tokens", "baseline", "tasks", "runs")
    told_apart: ClassVar = {"tasks": ("name",), "runs": ("arm", "seed")}

    tokens: int
    """How many tokens of held-out text were asked on."""
    baseline: str
    tasks: tuple[Asked, ...]
    runs: tuple[ProbedRun, ...]

    @property
    def measured(self) -> set[tuple[str, int]]:
        return {(run.arm, run.seed) for run in self.runs}

    def __post_init__(self) -> None:
        super().__post_init__()
        for run in self.runs:
            if run.done and len(run.right) != len(self.tasks):
                raise ValueError(f"with {len(run.right)} of {len(self.tasks)} tasks of {run.arm}, seed {run.seed}")
