"""What is recorded of an ablation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from attnres.lab.outcome import Outcome
from attnres.lab.record import Given, Record, refuse_repeated


@dataclass(frozen=True)
class Cell:
    """One arm at one scale of the embedding."""

    arm: str
    embedding_std: Given

    @property
    def name(self) -> str:
        return f"{self.arm}, std {self.embedding_std:g}"


@dataclass(frozen=True, kw_only=True)
class TrialRun(Outcome):
    """One run of a cell, with both learning rates times `factor`."""

    factor: Given
    seed: int


@dataclass(frozen=True)
class CellRecord(Cell):
    """What a cell gave: the learning rate that was chosen and a run for every seed."""

    factor: Given | None
    """None where no rate of the grid trains."""
    tuning: tuple[TrialRun, ...]
    runs: tuple[TrialRun, ...]

    def __post_init__(self) -> None:
        refuse_repeated(self.tuning, ("factor", "seed"), "tuning")
        refuse_repeated(self.runs, ("seed",), "runs")

    @property
    def cell(self) -> Cell:
        return Cell(self.arm, self.embedding_std)


@dataclass(frozen=True)
class Sweep:
    """What all cells of a record have in common."""

    config: Mapping[str, Any]
    grid: tuple[Given, ...]
    tuning_seeds: int
    wider: int = 0
    equal: str = "steps"
    costs: Mapping[str, float] | None = None
    """What a step of each arm takes of what all arms spend alike, over the first one's; None where that is steps."""


@dataclass(frozen=True, kw_only=True)
class AblationRecord(Record):
    kind: ClassVar = "ablation"
    written_by: ClassVar = "ablate"
    never_empty: ClassVar = ("embedding_stds", "cells")
    told_apart: ClassVar = {"left_out": ("arm", "embedding_std"), "cells": ("arm", "embedding_std")}

    sweep: Sweep
    embedding_stds: tuple[Given, ...]
    left_out: tuple[Cell, ...]
    cells: tuple[CellRecord, ...]
