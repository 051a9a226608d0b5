"""How arms get learning rates of their own: by one rule, on seeds that are not reported."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Protocol

TUNING_SEED = 1000
"""Learning rates are chosen on seeds from this on: choosing on a reported one would favour the arm tuned most."""

MOST_BEYOND = 3
"""How often a grid is made wider where the best lies at its edge."""


class Tried(Protocol):
    """A run with both learning rates times `factor`."""

    @property
    def factor(self) -> float: ...
    @property
    def done(self) -> bool: ...
    @property
    def loss(self) -> float: ...


def choose(runs: Sequence[Tried]) -> float | None:
    """The factor of lowest mean loss among those that ran on most seeds, none of them unfinished; None without any."""
    losses: dict[float, list[float]] = {}
    for run in runs:
        losses.setdefault(run.factor, []).append(run.loss if run.done else math.inf)
    finished = {factor: of for factor, of in losses.items() if math.isfinite(sum(of))}
    return min(finished, key=lambda f: (-len(finished[f]), statistics.mean(finished[f])), default=None)


def beyond(runs: Sequence[Tried]) -> float | None:
    """The factor to try next where the best one has no neighbour on one side: as far from it as the one on the other.

    None where it has both, where only one was tried, and where none trains.
    """
    best, factors = choose(runs), sorted({run.factor for run in runs})
    if best is None or len(factors) < 2 or factors[0] < best < factors[-1]:
        return None
    neighbour = factors[1] if best == factors[0] else factors[-2]
    return float(f"{best * best / neighbour:.3g}")  # folders carry it in their names
