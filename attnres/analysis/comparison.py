"""Paired comparison of arms over seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Comparison:
    """One arm against the baseline. Losses in nats per token."""

    arm: str
    seeds: int
    """Finished runs of this arm."""
    validation_loss: float | None
    """Mean over seeds of the final validation loss."""
    difference: float | None
    """Mean over the seeds that both have of loss minus the baseline's loss of the same seed; negative is better."""
    difference_error: float | None
    """Standard error of `difference`: the pairs' standard deviation over sqrt(pairs). None with fewer than two."""
    step_time_ratio: float | None
    """Median over seeds of the median step time, over the baseline's."""
    peak_memory_ratio: float | None
    """Median over seeds of the peak memory of training, over the baseline's."""


def compare_arms(summaries: Mapping[str, Mapping[int, Mapping[str, float]]], baseline: str) -> list[Comparison]:
    """From the arms' run summaries by seed (see `attnres.train`) to one row per arm, in the order given."""
    base = summaries.get(baseline, {})
    rows = []
    for arm, runs in summaries.items():
        pairs = [runs[seed]["validation_loss"] - base[seed]["validation_loss"] for seed in runs if seed in base]
        is_baseline = arm == baseline
        rows.append(
            Comparison(
                arm=arm,
                seeds=len(runs),
                validation_loss=_mean([run["validation_loss"] for run in runs.values()]),
                difference=None if is_baseline else _mean(pairs),
                difference_error=None if is_baseline else standard_error(pairs),
                step_time_ratio=_ratio(runs, base, "step_seconds"),
                peak_memory_ratio=_ratio(runs, base, "peak_memory_bytes"),
            )
        )
    return rows


def standard_error(values: Sequence[float]) -> float | None:
    """Of the mean of the values, from their own spread; None for fewer than two."""
    if len(values) < 2:
        return None
    return float(np.std(values, ddof=1)) / math.sqrt(len(values))


def paired_p_value(differences: Sequence[float]) -> float | None:
    """Of a two-sided paired t-test that the mean difference is zero; None for fewer than two pairs."""
    from scipy.stats import ttest_1samp  # half a second, which most commands need not wait for

    if len(differences) < 2:
        return None
    if np.ptp(differences) == 0:  # no spread at all: the test has no scale
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
    return float(np.mean(values)) if values else None


def _ratio(runs: Mapping[int, Mapping], base: Mapping[int, Mapping], key: str) -> float | None:
    if not runs or not base:
        return None
    denominator = float(np.median([run[key] for run in base.values()]))
    return float(np.median([run[key] for run in runs.values()])) / denominator if denominator else None
