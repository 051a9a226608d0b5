"""Paired comparison of arms over seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

Run = TypeVar("Run")

SIGNIFICANCE = 0.05
"""A difference is decided where its corrected p-value is below this."""

WIDEST = 1.5
"""A ratio of costs is withheld where the highest seed's is more than this times the lowest's: other work moved it."""


@dataclass(frozen=True)
class Comparison:
    """One arm against the baseline."""

    arm: str
    seeds: int
    """Finished runs of this arm."""
    validation_loss: float | None = None
    """Mean over seeds of the final validation loss."""
    difference: float | None = None
    """Mean over the seeds that both have of loss minus the baseline's loss of the same seed; negative is better."""
    difference_error: float | None = None
    """Standard error of `difference`: the pairs' standard deviation over sqrt(pairs). None with fewer than two."""
    differences: Mapping[int, float] = field(default_factory=dict)
    """Each seed's difference."""
    p_value: float | None = None
    """Two-sided paired t-test that the mean difference is zero, Holm-corrected over the arms compared."""
    step_time_ratio: float | None = None
    """Median over the seeds that both have of the median step time over the baseline's of the same seed; None where it
    is withheld."""
    step_time_range: tuple[float, float] | None = None
    """The lowest and highest seed's ratio; None for the baseline."""
    peak_memory_ratio: float | None = None
    """As `step_time_ratio`, of the peak memory of training."""
    peak_memory_range: tuple[float, float] | None = None

    @property
    def decided(self) -> bool:
        return self.p_value is not None and self.p_value < SIGNIFICANCE


class Finished(Protocol):
    """A run that is done, such as one of a record."""

    loss: float
    step_seconds: float | None
    peak_memory_bytes: int | None


def compare_arms(runs: Mapping[str, Mapping[int, Any]], baseline: str) -> list[Comparison]:
    """Compare arms by seed, from their `Finished` runs: one row per arm, in the order given."""
    base = runs.get(baseline, {})
    rows = [_comparison(arm, of_arm, base, is_baseline=arm == baseline) for arm, of_arm in runs.items()]
    p_values = holm([paired_p_value(list(row.differences.values())) for row in rows])
    return [replace(row, p_value=p_value) for row, p_value in zip(rows, p_values, strict=True)]


def _comparison(arm: str, runs: Mapping[int, Finished], base: Mapping[int, Finished], is_baseline: bool) -> Comparison:
    pairs = [(seed, runs[seed], base[seed]) for seed in runs if seed in base]
    differences = {} if is_baseline else {seed: run.loss - other.loss for seed, run, other in pairs}
    ratios: dict[str, Any] = {"step_time_ratio": 1.0, "peak_memory_ratio": 1.0} if is_baseline and runs else {}
    if not is_baseline:
        for name, cost in (("step_time", "step_seconds"), ("peak_memory", "peak_memory_bytes")):
            both = [(getattr(run, cost), getattr(other, cost)) for _, run, other in pairs]
            ratios |= _ratio(name, [own / other for own, other in both if own and other])
    return Comparison(
        arm=arm,
        seeds=len(runs),
        validation_loss=_mean([run.loss for run in runs.values()]),
        difference=_mean(list(differences.values())),
        difference_error=standard_error(list(differences.values())),
        differences=differences,
        **ratios,
    )


def _ratio(name: str, ratios: Sequence[float]) -> dict[str, Any]:
    """The median over the seeds of what their runs took over what the baseline's took, and the range of these ratios.

    None of a single seed, and where they are more than WIDEST times apart.
    """
    if len(ratios) < 2 or max(ratios) > WIDEST * min(ratios):
        return {}
    return {f"{name}_ratio": statistics.median(ratios), f"{name}_range": (min(ratios), max(ratios))}


def on_common_seeds(runs: Mapping[str, Mapping[int, Run]]) -> dict[str, dict[int, Run]]:
    """Keep the seeds that every arm with a finished run has, so that means and differences are of the same runs.

    runs: what there is of each finished run, by arm and seed.
    """
    finished = [set(of_arm) for of_arm in runs.values() if of_arm]
    common = set.intersection(*finished) if finished else set()
    return {arm: {seed: run for seed, run in of_arm.items() if seed in common} for arm, of_arm in runs.items()}


def finding(rows: Sequence[Comparison]) -> str:
    """Say in one sentence what the comparison decides, and no more; empty where nothing was compared.

    rows: the baseline first. Which arm is best of several is not tested, so it is not said.
    """
    tested = sorted(
        (row for row in rows[1:] if row.difference is not None and math.isfinite(row.difference)),
        key=lambda row: row.difference or 0.0,
    )
    if not tested:
        return ""
    sides = decided_sides(rows)
    if not sides:
        return _undecided(tested, rows[0].arm)
    sentence = f"{sides} in validation loss (nats per byte)"
    if undecided := [row.arm for row in tested if not row.decided]:
        sentence += f"; not decided: {_listed(undecided)}"
    return f"{sentence}."


def decided_sides(rows: Sequence[Comparison]) -> str:
    """Say which arms end below the baseline, the first row, and which above; empty where nothing is decided."""
    decided = sorted((row for row in rows[1:] if row.decided), key=lambda row: row.difference or 0.0)
    clauses = []
    for side, of_side in (
        ("below", [row for row in decided if (row.difference or 0) < 0]),
        ("above", [row for row in decided if (row.difference or 0) > 0]),
    ):
        if of_side:
            arms = [f"{row.arm} ({row.difference:+z.4f}, {p_text(row.p_value)})" for row in of_side]
            clauses.append(f"{_listed(arms)} {'ends' if len(of_side) == 1 else 'end'} {side} {rows[0].arm}")
    return " and ".join(clauses)


def p_text(p_value: float | None) -> str:
    """Write a p-value as far as anyone reads it."""
    if p_value is None:
        return ""
    return "p < 0.001" if p_value < 0.001 else f"p = {p_value:.2g}"


def _undecided(tested: Sequence[Comparison], baseline: str) -> str:
    seeds = max(len(row.differences) for row in tested)
    low, high = tested[0], tested[-1]
    span = f"difference to {baseline}, {low.difference:+z.4f} ({low.arm})"
    if low is not high:
        span = f"differences to {baseline}, from {low.difference:+z.4f} ({low.arm}) to "
        span += f"{high.difference:+z.4f} ({high.arm})"
    return f"With {seeds} seed{'s' * (seeds != 1)} nothing is decided: the {span} nats per byte, may be chance."


def _listed(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


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


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None


def t_quantile(degrees: int, share: float = 0.95) -> float:
    """Student's t of so many degrees of freedom that this share of values lies within, on both sides of 0."""
    from scipy.stats import t  # half a second, which most commands need not wait for

    return float(t.ppf((1 + share) / 2, degrees))
