"""What is recorded of switching sublayers off."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from attnres.lab.outcome import Outcome
from attnres.lab.record import Record, Stored


@dataclass(frozen=True, kw_only=True)
class Pruned(Stored):
    """What is measured of one run, kept in its folder. Raises ValueError where its loss is missing."""

    kind: ClassVar = "pruning of a run"
    written_by: ClassVar = "prune"
    remedy: ClassVar = "delete it, and it is measured again"

    tokens: int
    step: int
    """The checkpoint's step."""
    loss: float
    """The whole model's loss, in nats per byte."""
    added: tuple[float, ...]
    """What each sublayer adds to it when it is off: [sublayer]."""
    seconds: float

    def __post_init__(self) -> None:
        super().__post_init__()
        if math.isnan(self.loss):
            raise ValueError("with no loss")


@dataclass(frozen=True, kw_only=True)
class PrunedRun(Outcome):
    """A run; loss and `added` are there if it is done. Raises ValueError where they are not."""

    arm: str
    seed: int
    added: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.done and not self.added:
            raise ValueError(f"with nothing measured of {self.arm}, seed {self.seed}")


@dataclass(frozen=True, kw_only=True)
class PruneRecord(Record):
    kind: ClassVar = "prune"
    written_by: ClassVar = "prune"
    never_empty: ClassVar = ("tokens", "baseline", "runs")
    told_apart: ClassVar = {"runs": ("arm", "seed")}

    tokens: int
    baseline: str
    runs: tuple[PrunedRun, ...]

    @property
    def measured(self) -> set[tuple[str, int]]:
        return {(run.arm, run.seed) for run in self.runs}

    def __post_init__(self) -> None:
        super().__post_init__()
        sublayers = max(len(run.added) for run in self.runs)
        for run in self.runs:
            if run.done and len(run.added) != sublayers:
                raise ValueError(f"with {len(run.added)} of {sublayers} sublayers of {run.arm}, seed {run.seed}")
