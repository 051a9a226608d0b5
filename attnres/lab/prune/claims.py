"""What a record of pruning says: are sublayers less redundant than in the baseline?"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from attnres.lab.claims import NEGLIGIBLE, Statement, judged, paired, summary
from attnres.lab.dynamics.options import ARMS
from attnres.lab.outcome import done_runs
from attnres.lab.prune.record import PrunedRun, PruneRecord

THRESHOLD = 0.01
"""Nats per byte: a sublayer that costs less is called removable."""

NEGLIGIBLE_LOSS = 0.001
"""Nats per byte: a difference of mean or median added loss below this is as good as none."""


def gini(values: Sequence[float]) -> float:
    """How unequal they are: 0 if all are equal, near 1 if one holds everything. Negative ones count as nothing."""
    ordered = np.sort(np.maximum(values, 0.0))
    count, total = len(ordered), ordered.sum()
    if total == 0:
        return 0.0
    return float(((2 * np.arange(1, count + 1) - count - 1) * ordered).sum() / (count * total))


def removable(values: Sequence[float]) -> float:
    """The share of sublayers whose removal costs less than THRESHOLD."""
    return float(np.mean(np.asarray(values) < THRESHOLD))


MEASURES: dict[str, Callable[[PrunedRun], float]] = {
    "mean": lambda run: float(np.mean(run.added)),
    "median": lambda run: float(np.median(run.added)),
    "removable": lambda run: removable(run.added),
    "Gini": lambda run: gini(run.added),
}


def by_arm(record: PruneRecord) -> dict[str, list[PrunedRun]]:
    """The record's runs, the baseline's first, then in the order in which `attnres dynamics` has them."""
    arms: dict[str, list[PrunedRun]] = {record.baseline: []}
    for run in sorted(record.runs, key=lambda run: ARMS.index(run.arm) if run.arm in ARMS else len(ARMS)):
        arms.setdefault(run.arm, []).append(run)
    return arms


def prune_statements(record: PruneRecord) -> list[Statement]:
    """Test whether layers are less redundant than in the baseline."""
    baseline = record.baseline
    arms = {arm: {run.seed: run for run in done_runs(runs)} for arm, runs in by_arm(record).items()}
    claims = (
        (f"a sublayer costs more than in {baseline}, median", "median", 1, NEGLIGIBLE_LOSS),
        (f"a sublayer costs more than in {baseline}, mean", "mean", 1, NEGLIGIBLE_LOSS),
        (f"fewer are removable than in {baseline}", "removable", -1, NEGLIGIBLE),
        (f"the cost is more even than in {baseline} (Gini)", "Gini", -1, NEGLIGIBLE),
    )
    found = []
    for claim, measure, sign, negligible in claims:
        differences = paired(arms, baseline, MEASURES[measure])
        found += judged(claim, sign, differences, negligible=negligible, counted=measure == "removable")
    return found


def finding(record: PruneRecord) -> str:
    """Whether sublayers are less redundant."""
    return summary(prune_statements(record), first=lambda claim: not claim.endswith("mean"))
