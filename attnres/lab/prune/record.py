"""What is recorded of switching sublayers off."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from attnres.lab.outcome import Outcome
from attnres.lab.record import Record, Stored


@dataclass(frozen=True, kw_only=True)
class Pruned(Stored):
    """What is measured of one run, kept in its folder."""

    kind: ClassVar = "pruning of a run"
    written_by: ClassVar = "prune"

    tokens: int
    step: int
    """The checkpoint's step."""
    loss: float
    """The whole model's loss, in nats per byte."""
    added: tuple[float, ...]
    """What each sublayer adds to it when it is off: [sublayer]."""
    seconds: float


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

    tokens: int
    baseline: str
    runs: tuple[PrunedRun, ...]
