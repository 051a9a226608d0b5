"""What is fitted to a scaling sweep: final losses, and losses at equal compute."""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence

from attnres.analysis.comparison import on_common_seeds
from attnres.analysis.powerlaw import FEWEST_SIZES, Advantage, Fit, Point, advantages_between_sizes, fit_where_possible
from attnres.lab.scaling.record import ScalingRecord, SizedRun


def compared_runs(record: ScalingRecord) -> list[SizedRun]:
    """The finished runs of those seeds that at their size every arm with one has.

    Seeds differ by more than arms do: where one arm has lost a run, means over what is left would not compare.
    """
    of_sizes: dict[str, dict[str, dict[int, SizedRun]]] = {}
    for run in record.runs:
        if run.done:
            of_sizes.setdefault(run.size, {}).setdefault(run.arm, {})[run.seed] = run
    compared = [on_common_seeds(of_size) for of_size in of_sizes.values()]
    kept = {(run.arm, run.size, run.seed) for arms in compared for seeds in arms.values() for run in seeds.values()}
    return [run for run in record.runs if run.done and (run.arm, run.size, run.seed) in kept]


def final_points(record: ScalingRecord) -> dict[str, list[Point]]:
    """The final loss of every run that is compared, by arm, the baseline first; compute in operations."""
    curves: dict[str, list[Point]] = {record.arms[0]: []}
    for run in compared_runs(record):
        compute = run.flops_per_token * run.tokens
        curves.setdefault(run.arm, []).append(Point(compute, run.loss, run.size, run.seed))
    return curves


def axes_of(record: ScalingRecord) -> dict[str, dict[str, list[Point]]]:
    """The final points over operations and, where every arm was timed at every size, over seconds of one core."""
    axes = {"operations": final_points(record)}
    steps = {(run.arm, run.size): run.steps for run in record.runs if run.done}
    times = step_times(record)
    if times.keys() >= steps.keys():
        axes["seconds"] = {
            arm: [
                dataclasses.replace(point, compute=times[arm, point.size] * steps[arm, point.size]) for point in points
            ]
            for arm, points in axes["operations"].items()
        }
    return axes


def step_times(record: ScalingRecord) -> dict[tuple[str, str], float]:
    """(arm, size) -> seconds of a step: measured by turns where every run has such a time, else the runs' own.

    None at all where some of these are of a GPU and others not.
    """
    done = [run for run in record.runs if run.done]
    if by_turns(record):
        assert record.step_times
        return {(run.arm, run.size): record.step_times.seconds[run.size][run.arm] for run in done}
    if len({run.gpu for run in done}) > 1:
        return {}
    own: dict[tuple[str, str], list[float]] = {}
    for run in done:
        if run.step_seconds:
            own.setdefault((run.arm, run.size), []).append(run.step_seconds)
    return {key: statistics.median(seconds) for key, seconds in own.items()}


def by_turns(record: ScalingRecord) -> bool:
    """Whether the steps of all finished runs were timed by turns."""
    seconds = record.step_times.seconds if record.step_times else {}
    return bool(seconds) and all(run.arm in seconds.get(run.size, ()) for run in record.runs if run.done)


def advantages_over_the_size_below(
    record: ScalingRecord, curves: Mapping[str, Sequence[Point]]
) -> dict[tuple[str, str], Advantage]:
    """(arm, size) -> `advantages_between_sizes` of that size and the one with the next fewer parameters.

    Left out is a size with other tokens per parameter than that one, but for whole steps. The pairs are made here, as
    that function orders all sizes by compute, of which a larger one with fewer tokens may have less.
    """
    lengths = {run.size: (run.parameters, run.tokens / run.parameters) for run in record.runs}
    found = {}
    for pair in itertools.pairwise(sorted(lengths, key=lengths.__getitem__)):
        below, at = (lengths[size][1] for size in pair)
        if math.isclose(below, at, rel_tol=0.1):
            of_both = {arm: [point for point in points if point.size in pair] for arm, points in curves.items()}
            found |= advantages_between_sizes(of_both)
    return found


def why_no_advantage(baseline: str, fits: Sequence[Fit]) -> str:
    """Say in one sentence why the fits tell no arm's compute advantage."""
    lines = {fit.arm: fit for fit in fits}
    if baseline not in lines:
        return f"No compute advantage is given: {baseline} has no fit."
    if not lines[baseline].falls:
        return f"No compute advantage is given: the 95% interval of {baseline}'s exponent is not all above 0."
    return "No compute advantage is given: no other connection has a fit."


def paired_lead(record: ScalingRecord, arm: str, size: str) -> tuple[float | None, float | None]:
    """The mean difference to the baseline over the seeds that both finished at that size, and its standard error."""
    losses = {(run.arm, run.seed): run.loss for run in record.runs if run.size == size and run.done}
    pairs = [
        loss - losses[record.arms[0], seed]
        for (of, seed), loss in losses.items()
        if of == arm and (record.arms[0], seed) in losses
    ]
    error = statistics.stdev(pairs) / math.sqrt(len(pairs)) if len(pairs) > 1 else None
    return (statistics.fmean(pairs) if pairs else None), error


def fitted(record: ScalingRecord) -> bool:
    """Whether there are sizes enough for power laws: a record may be of a sweep that goes on."""
    return len({run.size for run in record.runs}) >= FEWEST_SIZES


def diverged(record: ScalingRecord) -> dict[str, int]:
    """How many runs of each arm did not end below where they began."""
    return {arm: sum(run.arm == arm and run.status == "diverged" for run in record.runs) for arm in record.arms}


def iso_flop_curves(record: ScalingRecord, levels: int = 4) -> dict[str, dict[float, list[tuple[float, float]]]]:
    """arm -> compute -> [(parameters, loss)]: mean over seeds, read off the training curves at equal compute.

    Losses before the learning rate begins to decay, and so above those of a run that was made for that compute: good
    for comparing sizes and arms with each other at one level, not for a fit. A size counts at a level if its runs reach
    it before that; a level is kept if two sizes do, and not for one of several arms alone. Levels are spaced evenly in
    log compute, between what the smallest and the largest model have used by then under the arm that uses least.
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
    reached = Counter(itertools.chain.from_iterable(arms.values()))
    fewest = min(2, len(record.arms))
    return {arm: {level: of[level] for level in of if reached[level] >= fewest} for arm, of in arms.items()}


def _by_size(record: ScalingRecord, arm: str | None = None) -> dict[str, list[SizedRun]]:
    """size -> its runs that are compared, with curves over operations that end before the learning rate decays."""
    groups: dict[str, list[SizedRun]] = {}
    for run in compared_runs(record):
        if arm in (None, run.arm):
            steady = (1 - record.config["optimizer"]["decay"]) * run.tokens
            curve = tuple((run.flops_per_token * tokens, loss) for tokens, loss in run.curve if tokens <= steady)
            if curve:  # a run of a few steps may have no loss before that
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
    if not fitted(record):
        return f"Fewer than {FEWEST_SIZES} sizes are done."
    baseline, *others = record.arms
    if not others:
        return "There is one arm alone."
    fits, advantages = fit_where_possible(final_points(record))
    if not advantages:
        return why_no_advantage(baseline, fits)
    parts = [
        f"{one.factor:.2f} [{one.interval[0]:.2f}, {one.interval[1]:.2f}] times the compute of {one.arm}"
        for one in advantages
    ]
    return f"For the same loss {baseline} needs {', '.join(parts)}."
