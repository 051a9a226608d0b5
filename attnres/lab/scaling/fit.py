"""What is fitted to a scaling sweep: final losses, and losses at equal compute."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence

from attnres.analysis.powerlaw import Point, fit_power_laws
from attnres.lab.scaling.record import ScalingRecord, SizedRun


def final_points(record: ScalingRecord) -> dict[str, list[Point]]:
    """The final loss of every run that was finished, by arm, the baseline first; compute in operations."""
    curves: dict[str, list[Point]] = {record.arms[0]: []}
    for run in record.runs:
        if run.done:
            compute = run.flops_per_token * run.tokens
            curves.setdefault(run.arm, []).append(Point(compute, run.loss, run.size, run.seed))
    return curves


def diverged(record: ScalingRecord) -> dict[str, int]:
    """How many runs of each arm did not end below where they began."""
    return {arm: sum(run.arm == arm and run.status == "diverged" for run in record.runs) for arm in record.arms}


def iso_flop_curves(record: ScalingRecord, levels: int = 8) -> dict[str, dict[float, list[tuple[float, float]]]]:
    """arm -> compute -> [(parameters, loss)]: mean over seeds, read off the training curves at equal compute.

    Losses before the learning rate begins to decay, and so above those of a run that was made for that compute: good
    for comparing sizes and arms with each other at one level, not for a fit. A size counts at a level if its runs reach
    it before that; a level is kept if two sizes do. Levels are spaced evenly in log compute, between what the smallest
    and the largest model have used by then under the arm that uses least.
    """
    totals = sorted(min(run.curve[-1][0] for run in group) for group in _by_size(record).values())
    if len(totals) < 2:
        return {}
    low, high = math.log(totals[0]), math.log(totals[-1])
    computes = [math.exp(low + (high - low) * level / (levels - 1)) * 0.999 for level in range(levels)]
    arms: dict[str, dict[float, list[tuple[float, float]]]] = {}
    for arm in record.arms:
        for compute in computes:
            points = []
            for group in _by_size(record, arm).values():
                losses = [_at(run.curve, compute) for run in group]
                if losses and all(loss is not None for loss in losses):
                    points.append((float(group[0].parameters), sum(filter(None, losses)) / len(losses)))
            if len(points) > 1:
                arms.setdefault(arm, {})[compute] = sorted(points)
    return arms


def _by_size(record: ScalingRecord, arm: str | None = None) -> dict[str, list[SizedRun]]:
    """size -> its finished runs, with curves over operations that end before the learning rate decays."""
    groups: dict[str, list[SizedRun]] = {}
    for run in record.runs:
        if run.done and arm in (None, run.arm):
            steady = (1 - record.config["optimizer"]["decay"]) * run.tokens
            curve = tuple((run.flops_per_token * tokens, loss) for tokens, loss in run.curve if tokens <= steady)
            groups.setdefault(run.size, []).append(dataclasses.replace(run, curve=curve))
    return groups


def _at(curve: Sequence[Sequence[float]], compute: float) -> float | None:
    """The loss at that compute, linear in log compute between evaluations; None outside of them."""
    for (before, loss), (after, next_loss) in itertools.pairwise(curve):
        if before <= compute <= after and before > 0:
            share = math.log(compute / before) / math.log(after / before)
            return loss + share * (next_loss - loss)
    return None


def finding(record: ScalingRecord) -> str:
    """How much compute each arm saves."""
    _, advantages = fit_power_laws(final_points(record))
    baseline = record.arms[0]
    parts = [
        f"{one.factor:.2f} [{one.interval[0]:.2f}, {one.interval[1]:.2f}] times the compute of {one.arm}"
        for one in advantages
    ]
    return f"For the same loss {baseline} needs {', '.join(parts)}." if parts else "There is one arm alone."
