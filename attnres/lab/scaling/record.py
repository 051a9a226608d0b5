"""What is recorded of a scaling sweep."""

from __future__ import annotations

from collections.abc import Mapping
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
