"""What is recorded of a scaling sweep."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from attnres.lab.outcome import Outcome
from attnres.lab.record import Given, Record


@dataclass(frozen=True, kw_only=True)
class SizedRun(Outcome):
    """One run with its learning rates. Its curve is over tokens: (tokens, validation loss)."""

    arm: str
    size: str
    """LAYERSxDIM"""
    factor: Given = 1.0
    """The multiple of the learning rates in the record's configuration."""
    parameters: int
    """How many parameters the sublayers have."""
    seed: int
    steps: int
    tokens: int
    flops_per_token: float


@dataclass(frozen=True)
class Sweep:
    """What all runs of a record have in common: a command with another one does not go on with it."""

    config: Mapping[str, Any]
    grid: tuple[Given, ...]
    heads: int | None = None


@dataclass(frozen=True)
class StepTimes:
    """What a step takes on one thread, all arms of a size measured by turns."""

    seconds: Mapping[str, Mapping[str, float]]
    """size -> arm -> the median."""
    date: str
    commit: str | None
    machine: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class ScalingRecord(Record):
    kind: ClassVar = "scaling"
    written_by: ClassVar = "scaling"
    never_empty: ClassVar = ("arms",)
    told_apart: ClassVar = {
        "runs": ("arm", "size", "seed"),
        "grid": ("arm", "size", "seed", "factor"),
        "check": ("arm", "size", "seed", "factor"),
    }

    arms: tuple[str, ...]
    """The first is the baseline."""
    tokens_per_parameter: Given
    runs: tuple[SizedRun, ...]
    """Empty while the rates of the smallest sizes are being chosen."""
    grid: tuple[SizedRun, ...] = ()
    """What the rates of the two smallest sizes were chosen from."""
    check: tuple[SizedRun, ...] = ()
    """Sizes from the third on at half and twice their rates, on the first seed."""
    sweep: Sweep | None = None
    """None in records from before it was kept; nothing goes on with those."""
    step_times: StepTimes | None = None
    """None where they were not asked for. Sizes and arms that were trained later are missing."""

    def __post_init__(self) -> None:
        super().__post_init__()
        optimizer = self.config.get("optimizer")
        if self.runs and not (isinstance(optimizer, Mapping) and isinstance(optimizer.get("decay"), int | float)):
            raise ValueError("whose 'config' does not say how the learning rate decays")

    @property
    def origin(self) -> dict[str, str]:
        """As every record's, with the hours on a GPU apart where some of the runs had one."""
        runs = (*self.grid, *self.runs, *self.check)
        on_gpu = [run for run in runs if run.gpu]
        if len(on_gpu) in (0, len(runs)):
            return super().origin
        hours = sum((run.step_seconds or 0.0) * run.steps for run in on_gpu) / 3600
        which = f"{len(on_gpu)} runs of {_named(run.size for run in on_gpu)} on {_named(run.gpu for run in on_gpu)}"
        return super().origin | {"computing": f"{self.hours - hours:.1f} hours of one thread, {hours:.1f} of {which}"}


def _named(names: Iterable[str | None]) -> str:
    return ", ".join(dict.fromkeys(name for name in names if name))
