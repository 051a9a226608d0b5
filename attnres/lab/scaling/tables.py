"""The table of a scaling law, of a record or of points from anywhere."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence

from attnres.analysis.powerlaw import (
    FEWEST_SIZES,
    Advantage,
    Fit,
    Point,
    advantages_at_sizes,
    fit_where_possible,
)
from attnres.lab.scaling.fit import (
    advantages_over_the_size_below,
    axes_of,
    by_turns,
    diverged,
    final_points,
    fitted,
    paired_lead,
    why_no_advantage,
)
from attnres.lab.scaling.record import ScalingRecord
from attnres.lab.steptime import ROUNDS
from attnres.texttable import TextTable, number

SECONDS = {
    True: " Seconds: median step times of all arms by turns.",
    False: " Seconds: median step times of these runs, which other work on the machine blurs.",
}
"""By whether the steps were timed by turns."""
EXTRAPOLATED = 1.5
"""Times an arm's largest compute: further out, its advantage is marked."""


def scaling_tables(record: ScalingRecord) -> list[TextTable]:
    points = final_points(record)
    laws = [scaling_table(*fit_where_possible(points), "FLOPs", diverged(record), points)] if fitted(record) else []
    left_out = sum(run.done for run in record.runs) - sum(map(len, points.values()))
    if left_out:
        note = f" Finished runs left out, because an arm lacks their seed at their size: {left_out}."
        laws = [dataclasses.replace(law, note=law.note + note) for law in laws]
    return [*laws, *([along_table(record)] if record.runs else []), *step_tables(record), *rate_tables(record)]


def along_table(record: ScalingRecord) -> TextTable:
    """The lead and the compute advantage of every arm, size by size."""
    baseline, *arms = record.arms
    sizes = list(dict.fromkeys(run.size for run in record.runs))
    axes = axes_of(record) if fitted(record) else {}
    advantages = {name: advantages_at_sizes(points) for name, points in axes.items()}
    between = [advantages_over_the_size_below(record, points) for points in axes.values()]
    rows = []
    for arm, size in ((arm, size) for arm in arms for size in sizes):
        lead, error = paired_lead(record, arm, size)
        factors = [
            _factor_with_interval(of.get((arm, size)))
            for both in zip(advantages.values(), between, strict=True)
            for of in both
        ]
        rows.append((arm, size, number(lead, "+.4f") + (f" ± {error:.4f}" if error is not None else ""), *factors))
    named = ((f"advantage in {name}", f"{name}, between sizes") for name in advantages)
    columns = ("connection", "size", f"difference to {baseline}", *itertools.chain.from_iterable(named))
    note = (
        "Differences: nats per byte, mean over paired seeds ± standard error. Advantages: what the baseline needs over "
        "what the arm used for the arm's loss at that size, on the two fitted lines; 95% bootstrap intervals over the "
        f"sizes. Between sizes: the same on the power law through {baseline}'s own losses at that size and the one "
        "below, seed by seed; 95% t intervals over the seeds; the smallest size has none, nor has one seed or a size "
        "with other tokens per parameter than the one below."
    )
    if any(len(of) < len(rows) for of in advantages.values()):
        note += (
            " Blank: no run is done at that size, one of both lines is missing, or the 95% interval of "
            f"{baseline}'s exponent is not all above 0."
        )
    if "seconds" in advantages:
        note += SECONDS[by_turns(record)]
    return TextTable("Along the range", columns, tuple(rows), note)


def step_tables(record: ScalingRecord) -> list[TextTable]:
    """What a step takes, over the baseline's at the same size; nothing where steps were not timed by turns."""
    if not record.step_times:
        return []
    baseline, *arms = record.arms
    seconds = record.step_times.seconds
    rows = [(baseline, *(_milliseconds(of.get(baseline)) for of in seconds.values()))]
    for arm in arms:
        rows.append((arm, *(_over(of.get(arm), of.get(baseline)) for of in seconds.values())))
    machine = ", ".join(f"{name} {value}" for name, value in record.step_times.machine.items())
    note = (
        f"A training step on one thread, its median over {ROUNDS} rounds in which all arms take turns; of the others, "
        f"times {baseline}'s. Measured on {record.step_times.date}, commit {record.step_times.commit}, {machine}."
    )
    return [TextTable("A step's time", ("connection", *seconds), tuple(rows), note)]


def _milliseconds(seconds: float | None) -> str:
    return f"{float(f'{1000 * seconds:.3g}'):g} ms" if seconds else ""


def _over(seconds: float | None, of_baseline: float | None) -> str:
    return f"{seconds / of_baseline:.2f}x" if seconds and of_baseline else ""


def rate_tables(record: ScalingRecord) -> list[TextTable]:
    """The learning rates of every arm, and what their check found; nothing where none were chosen."""
    if not (record.grid and record.runs):
        return []
    factors = {(run.arm, run.size): run.factor for run in record.runs}
    sizes = list(dict.fromkeys(size for _, size in factors))
    checked = list(dict.fromkeys(run.size for run in record.check))
    rows = []
    for arm in record.arms:
        rates = (_rate(record, arm, size, factors.get((arm, size))) for size in sizes)
        rows.append((arm, *rates, *(_checked(record, arm, size) for size in checked)))
    note = (
        "Multiples of the default rates: at the two smallest sizes the lowest point of a parabola through a grid, on a "
        "seed of its own, which goes on where the best lies at its edge, and on the line through both from there on. * "
        "still at the edge of what was tried there: the best rate may lie beyond."
    )
    if checked:
        note += (
            " Check: loss at half and twice the rate, one seed, less the loss at the rate itself; below zero the line "
            "was wrong."
        )
    columns = ("connection", *sizes, *(f"check of {size}" for size in checked))
    return [TextTable("Learning rates", columns, tuple(rows), note)]


def _rate(record: ScalingRecord, arm: str, size: str, factor: float | None) -> str:
    if factor is None:
        return ""
    tried = {run.factor for run in record.grid if (run.arm, run.size) == (arm, size)}
    return f"x{factor:g}" + "*" * (len(tried) > 1 and factor in (min(tried), max(tried)))


def _checked(record: ScalingRecord, arm: str, size: str) -> str:
    at_rate = {(run.size, run.seed): run.loss for run in record.runs if run.arm == arm and run.done}
    parts = []
    for tried in (run for run in record.check if (run.arm, run.size) == (arm, size)):
        if not tried.done:
            parts.append(f"x{tried.factor:g}: {tried.status}")
        elif (place := (tried.size, tried.seed)) in at_rate:
            parts.append(f"x{tried.factor:g}: {tried.loss - at_rate[place]:+z.4f}")
    return ", ".join(parts)


def scaling_table(
    fits: Sequence[Fit],
    advantages: Sequence[Advantage],
    unit: str,
    diverged: Mapping[str, int] | None = None,
    points: Mapping[str, Sequence[Point]] | None = None,
) -> TextTable:
    """Tell what was fitted. diverged: how many runs of an arm the fit is without; points: those of every arm, the
    baseline first, where arms may be without a fit."""
    lost = {arm: f", {count} diverged" for arm, count in (diverged or {}).items() if count}
    lines = {fit.arm: fit for fit in fits}
    counts = {arm: len(of) for arm, of in points.items()} if points else {fit.arm: fit.runs for fit in fits}
    counts |= {arm: 0 for arm in lost if arm not in counts}
    baseline = next(iter(counts))
    factors = {advantage.arm: advantage for advantage in advantages}
    several = len(advantages) > 1
    rows = tuple(
        (
            arm,
            f"{count}{lost.get(arm, '')}",
            *_line(lines.get(arm)),
            _factor_with_interval(factors.get(arm)),
            *([_interval(factors[arm].joint) if arm in factors else ""] if several else []),
        )
        for arm, count in counts.items()
    )
    note = f"C in {unit}; a line through the means of the sizes, 95% bootstrap intervals over them."
    note += _caveats(fits, advantages, unit)
    if weak := [arm for arm, count in counts.items() if count and arm not in lines]:
        note += f" No fit where fewer than {FEWEST_SIZES} different computes are left: {', '.join(weak)}."
    if len(counts) > 1 and not advantages:
        note += f" {why_no_advantage(baseline, fits)}"
    columns = ("connection", "runs", "A", "a", f"compute advantage over {baseline}")
    joint = (f"all {len(advantages)} at once",) if several else ()
    return TextTable("L = A C^-a", (*columns, *joint), rows, note)


def _line(fit: Fit | None) -> tuple[str, str]:
    if fit is None:
        return "", ""
    return (
        f"{fit.scale:.4g} [{fit.scale_interval[0]:.4g}, {fit.scale_interval[1]:.4g}]",
        f"{fit.exponent:.4f} [{fit.exponent_interval[0]:.4f}, {fit.exponent_interval[1]:.4f}]",
    )


def _caveats(fits: Sequence[Fit], advantages: Sequence[Advantage], unit: str) -> str:
    """Where the advantages hold, and which of them lie outside of what was measured."""
    if not advantages:
        return ""
    at = advantages[0].compute
    text = f" Compute advantage: at C = {at:.3g} {unit}."
    if (count := len(advantages)) > 1:
        text += f" All {count} at once: its interval at 1 - 5% / {count} (Bonferroni)."
    for fit in fits:
        low, high = fit.computes
        if not low <= at <= EXTRAPOLATED * high:
            text += f" Extrapolated for {fit.arm}, measured from {low:.3g} to {high:.3g}."
    beyond = [advantage.arm for advantage in advantages if advantage.factor * at > EXTRAPOLATED * fits[0].computes[1]]
    if beyond and at <= EXTRAPOLATED * fits[0].computes[1]:
        text += f" {fits[0].arm} is extrapolated to what it would need for {', '.join(beyond)}."
    return text


def _factor_with_interval(advantage: Advantage | None) -> str:
    if advantage is None:
        return ""
    return f"{_times(advantage.factor)}x {_interval(advantage.interval)}"


def _interval(ends: tuple[float, float]) -> str:
    low, high = ends
    return f"[{_times(low)}, {_times(high)}]"


def _times(factor: float) -> str:
    return f"{factor:.2f}" if factor < 1000 else f"{factor:.1e}"
