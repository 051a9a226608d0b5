"""What is recorded of a retrofit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from attnres.lab.outcome import Outcome
from attnres.lab.record import Given, Record


@dataclass(frozen=True, kw_only=True)
class Arm:
    """A way to train on."""

    name: str
    connection: str
    """With the options by which it starts as the plain model."""
    rate: Given = 10.0
    """The learning rate of the connection over the model's."""


@dataclass(frozen=True, kw_only=True)
class ArmRecord(Arm):
    flops_per_token: float


@dataclass(frozen=True, kw_only=True)
class PlainRun(Outcome):
    """The training of a plain model."""

    seed: int


@dataclass(frozen=True, kw_only=True)
class TrialRun(Outcome):
    """The further training of the plain model of that seed. Its curve begins with the loss before the first step."""

    arm: str
    fraction: Given
    """The plain twin's steps over those of the plain model."""
    seed: int
    factor: Given
    """The multiple of the plain model's learning rates."""
    steps: int


@dataclass(frozen=True, kw_only=True)
class RetrofitRecord(Record):
    """Raises ValueError where a run has no arm or no plain model, or a fraction no run."""

    kind: ClassVar = "retrofit"
    written_by: ClassVar = "retrofit"
    never_empty: ClassVar = ("arms", "fractions", "runs")
    told_apart: ClassVar = {
        "arms": ("name",),
        "plain": ("seed",),
        "tuning": ("arm", "fraction", "seed", "factor"),
        "runs": ("arm", "fraction", "seed"),
    }

    arms: tuple[ArmRecord, ...]
    """The first is the plain twin."""
    fractions: tuple[Given, ...]
    """Those that are done."""
    plain: tuple[PlainRun, ...]
    tuning: tuple[TrialRun, ...]
    """What the rates were chosen from."""
    runs: tuple[TrialRun, ...]
    grid: tuple[Given, ...] = ()
    """The multiples that every arm tried. Empty, as the tuning seeds, in records from before they were kept."""
    tuning_seeds: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        arms, seeds = {arm.name for arm in self.arms}, {run.seed for run in self.plain}
        for run in (*self.tuning, *self.runs):
            if run.arm not in arms or run.seed not in seeds:
                raise ValueError(f"with no {'plain model' if run.arm in arms else 'arm'} of {run.arm}, seed {run.seed}")
        if empty := set(self.fractions) - {run.fraction for run in self.runs}:
            raise ValueError(f"with no run of the fraction {min(empty):g}")
