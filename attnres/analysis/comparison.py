"""Paired comparison of arms over seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

Run = TypeVar("Run")

SIGNIFICANCE = 0.05
"""A difference is decided where its corrected p-value is below this."""


@dataclass(frozen=True)
class Comparison:
    """One arm against the baseline, over the seeds that both have."""

    arm: str
    losses: Sequence[float]
    """The final validation loss of each finished run."""
    differences: Mapping[int, float]
    """Each seed's loss minus the baseline's; negative is better. Empty for the baseline."""
    step_times: Sequence[float]
    """Each seed's median step time over the baseline's."""
    peak_memories: Sequence[float]
    """Each seed's peak memory of training over the baseline's."""
    p_value: float | None = None
    """Two-sided paired t-test that the mean difference is zero, Holm-corrected over the arms compared."""

    @property
    def validation_loss(self) -> float | None:
        return statistics.fmean(self.losses) if self.losses else None

    @property
    def difference(self) -> float | None:
        return statistics.fmean(self.differences.values()) if self.differences else None

    @property
    def difference_error(self) -> float | None:
        return standard_error(list(self.differences.values()))

    @property
    def decided(self) -> bool:
        return self.p_value is not None and self.p_value < SIGNIFICANCE


def compare_arms(runs: Mapping[str, Mapping[int, Any]], baseline: str) -> list[Comparison]:
    """Compare arms by seed, from their finished runs: one row per arm, in the order given."""
    base = runs.get(baseline, {})
    rows = []
    for arm, of_arm in runs.items():
        pairs = {} if arm == baseline else {seed: (run, base[seed]) for seed, run in of_arm.items() if seed in base}
        losses = [run.loss for run in of_arm.values()]
        differences = {seed: run.loss - other.loss for seed, (run, other) in pairs.items()}
        seconds, memory = (_ratios([*pairs.values()], cost) for cost in ("step_seconds", "peak_memory_bytes"))
        rows.append(Comparison(arm, losses, differences, seconds, memory))
    p_values = holm([paired_p_value(list(row.differences.values())) for row in rows])
    return [replace(row, p_value=p_value) for row, p_value in zip(rows, p_values, strict=True)]


def _ratios(pairs: Sequence[tuple[Any, Any]], cost: str) -> list[float]:
    both = ((getattr(run, cost), getattr(other, cost)) for run, other in pairs)
    return [own / other for own, other in both if own and other]


def on_common_seeds(runs: Mapping[str, Mapping[int, Run]]) -> dict[str, dict[int, Run]]:
    """Keep the seeds that every arm with a finished run has, so that means and differences are of the same runs.

    runs: what there is of each finished run, by arm and seed.
    """
    finished = [set(of_arm) for of_arm in runs.values() if of_arm]
    common = set.intersection(*finished) if finished else set()
    return {arm: {seed: run for seed, run in of_arm.items() if seed in common} for arm, of_arm in runs.items()}


def finding(rows: Sequence[Comparison]) -> str:
    """Say what the comparison decides, and no more: which arm is best of several is not tested.

    rows: the baseline first.
    """
    baseline, *others = rows
    compared = [(row.difference, row) for row in others if row.difference is not None]
    if not compared:
        return f"no seed of {baseline.arm} and another connection ended, nothing is compared"
    decided = sorted((of for of in compared if of[1].decided), key=lambda of: of[0])
    clauses = []
    for side, sign in (("below", -1), ("above", 1)):
        arms = [f"{row.arm} ({value:+.4f}, {p_text(row.p_value)})" for value, row in decided if sign * value > 0]
        clauses += [f"{', '.join(arms)} {side} {baseline.arm}"] if arms else []
    if undecided := len(compared) - len(decided):
        clauses.append(f"{undecided} of {len(compared)} not decided")
    return "; ".join(clauses)


def p_text(p_value: float | None) -> str:
    """Write a p-value as far as anyone reads it."""
    return "" if p_value is None else f"p {'<' if p_value < 0.001 else '='} {max(p_value, 0.001):.3f}"


def standard_error(values: Sequence[float]) -> float | None:
    """Return the standard error of the mean of the values, from their own spread; None for fewer than two."""
    if len(values) < 2:
        return None
    spread = statistics.stdev(values) if all(map(math.isfinite, values)) else math.nan
    return spread / math.sqrt(len(values))


def paired_p_value(differences: Sequence[float]) -> float | None:
    """Return p of a two-sided paired t-test that the mean difference is zero.

    None for fewer than two pairs, or one whose difference is not finite.
    """
    from scipy.stats import ttest_1samp  # half a second, which most commands need not wait for

    if len(differences) < 2 or not all(map(math.isfinite, differences)):
        return None
    if max(differences) == min(differences):  # no spread at all: the test has no scale
        return 1.0 if differences[0] == 0 else 0.0
    return float(ttest_1samp(differences, 0.0).pvalue)  # type: ignore[attr-defined]


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """The p-values corrected for being read together (Holm 1979): in order, the k-th smallest times n - k + 1."""
    corrected: list[float | None] = list(p_values)
    known = sorted((p, index) for index, p in enumerate(p_values) if p is not None)
    largest = 0.0
    for rank, (p, index) in enumerate(known):
        largest = max(largest, min(1.0, p * (len(known) - rank)))
        corrected[index] = largest
    return corrected


def t_quantile(degrees: int, share: float = 0.95) -> float:
    """Student's t of so many degrees of freedom that this share of values lies within, on both sides of 0."""
    from scipy.stats import t  # half a second, which most commands need not wait for

    return float(t.ppf((1 + share) / 2, degrees))
