"""Scaling laws: the points of a record, what is fitted to points from anywhere, its table and its figure."""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from attnres.analysis.comparison import on_common_seeds
from attnres.analysis.powerlaw import (
    FEWEST_SIZES,
    Advantage,
    Fit,
    Point,
    advantages_between_sizes,
    fit_power_laws,
    fit_where_possible,
)
from attnres.files import write_bytes
from attnres.lab.figures import PAPER_MARK, panels
from attnres.lab.runs import Record, Run
from attnres.report.axes import STYLE, ink, legend_below, legend_label, line_styles, plain_log_ticks, png
from attnres.texttable import TextTable, visible

FIT = "figures/scaling-fit.png"

EXTRAPOLATED = 1.5
"""Times an arm's largest compute: further out, its advantage is marked."""

SCALING = {"residual": (1.891, 0.057), "block": (1.870, 0.058), "full": (1.865, 0.057)}
"""A and a of L = A C^-a, C in PFLOP/s-days, as the paper has them (2603.15031, Table 2; docs/SPEC.md 12)."""

SCALING_COMPUTE = 5.6
"""PFLOP/s-days at which the paper reads off its 1.25x: there the curves give its 1.714 and 1.692."""


def scaling_points() -> dict[str, list[Point]]:
    """Points on the published curves: the fit must give their numbers back."""
    computes = [SCALING_COMPUTE / 2**halvings for halvings in range(4, -1, -1)]
    return {arm: [Point(c, scale * c**-exponent) for c in computes] for arm, (scale, exponent) in SCALING.items()}


def compared_runs(record: Record) -> list[Run]:
    """The finished runs of those seeds that at their size every arm with one has.

    Seeds differ by more than arms do: where one arm has lost a run, means over what is left would not compare.
    """
    of_sizes: dict[str, dict[str, dict[int, Run]]] = {}
    for run in record.of():
        if run.done:
            of_sizes.setdefault(run.at, {}).setdefault(run.arm, {})[run.seed] = run
    compared = [on_common_seeds(of_size) for of_size in of_sizes.values()]
    kept = {(run.arm, run.at, run.seed) for arms in compared for seeds in arms.values() for run in seeds.values()}
    return [run for run in record.of() if run.done and (run.arm, run.at, run.seed) in kept]


def final_points(record: Record) -> dict[str, list[Point]]:
    """The final loss of every run that is compared, by arm, the baseline first; compute in operations."""
    curves: dict[str, list[Point]] = {record.arms[0]: []}
    for run in compared_runs(record):
        compute = run.measured["flops_per_token"] * run.measured["tokens"]
        curves.setdefault(run.arm, []).append(Point(compute, run.loss, run.at, run.seed))
    return curves


def axes_of(record: Record) -> dict[str, dict[str, list[Point]]]:
    """The final points over operations and, where every arm was timed at every size, over seconds of one core."""
    axes = {"operations": final_points(record)}
    steps = {(run.arm, run.at): run.steps for run in record.of() if run.done}
    times = step_times(record)
    if times.keys() >= steps.keys():
        axes["seconds"] = {
            arm: [
                dataclasses.replace(point, compute=times[arm, point.size] * steps[arm, point.size]) for point in points
            ]
            for arm, points in axes["operations"].items()
        }
    return axes


def step_times(record: Record) -> dict[tuple[str, str], float]:
    """(arm, size) -> seconds of a step: measured by turns where every run has such a time, else the runs' own.

    None at all where some of these are of a GPU and others not.
    """
    done = [run for run in record.of() if run.done]
    if by_turns(record):
        return {(run.arm, run.at): record.found["step_times"]["seconds"][run.at][run.arm] for run in done}
    if len({run.gpu for run in done}) > 1:
        return {}
    own: dict[tuple[str, str], list[float]] = {}
    for run in done:
        if run.step_seconds:
            own.setdefault((run.arm, run.at), []).append(run.step_seconds)
    return {key: statistics.median(seconds) for key, seconds in own.items()}


def by_turns(record: Record) -> bool:
    """Whether the steps of all finished runs were timed by turns."""
    seconds = record.found["step_times"]["seconds"] if record.found.get("step_times") else {}
    return bool(seconds) and all(run.arm in seconds.get(run.at, ()) for run in record.of() if run.done)


def advantages_over_the_size_below(
    record: Record, curves: Mapping[str, Sequence[Point]]
) -> dict[tuple[str, str], Advantage]:
    """(arm, size) -> `advantages_between_sizes` of that size and the one with the next fewer parameters.

    Left out is a size with other tokens per parameter than that one, but for whole steps. The pairs are made here, as
    that function orders all sizes by compute, of which a larger one with fewer tokens may have less.
    """
    lengths = {
        run.at: (run.measured["parameters"], run.measured["tokens"] / run.measured["parameters"]) for run in record.of()
    }
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


def paired_lead(record: Record, arm: str, size: str) -> tuple[float | None, float | None]:
    """The mean difference to the baseline over the seeds that both finished at that size, and its standard error."""
    losses = {(run.arm, run.seed): run.loss for run in record.of() if run.at == size and run.done}
    pairs = [
        loss - losses[record.arms[0], seed]
        for (of, seed), loss in losses.items()
        if of == arm and (record.arms[0], seed) in losses
    ]
    error = statistics.stdev(pairs) / math.sqrt(len(pairs)) if len(pairs) > 1 else None
    return (statistics.fmean(pairs) if pairs else None), error


def fitted(record: Record) -> bool:
    """Whether there are sizes enough for power laws: a record may be of a sweep that goes on."""
    return len({run.at for run in record.of()}) >= FEWEST_SIZES


def diverged(record: Record) -> dict[str, int]:
    """How many runs of each arm did not end below where they began."""
    return {arm: sum(run.arm == arm and run.status == "diverged" for run in record.of()) for arm in record.arms}


def iso_flop_curves(record: Record, levels: int = 4) -> dict[str, dict[float, list[tuple[float, float]]]]:
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
                    points.append((float(group[0].measured["parameters"]), sum(filter(None, losses)) / len(losses)))
            if len(points) > 1:
                arms.setdefault(arm, {})[compute] = sorted(points)
    reached = Counter(itertools.chain.from_iterable(arms.values()))
    fewest = min(2, len(record.arms))
    return {arm: {level: of[level] for level in of if reached[level] >= fewest} for arm, of in arms.items()}


def _by_size(record: Record, arm: str | None = None) -> dict[str, list[Run]]:
    """size -> its runs that are compared, with curves over operations that end before the learning rate decays."""
    groups: dict[str, list[Run]] = {}
    for run in compared_runs(record):
        if arm in (None, run.arm):
            of_step = run.measured["flops_per_token"] * (run.measured["tokens"] / run.steps)
            steady = (1 - record.config["optimizer"]["decay"]) * run.steps
            curve = tuple((of_step * step, loss) for step, loss in run.curve if step <= steady)
            if curve:  # a run of a few steps may have no loss before that
                groups.setdefault(run.at, []).append(dataclasses.replace(run, curve=curve))
    return groups


def _at(curve: Sequence[Sequence[float]], compute: float) -> float | None:
    """The loss at that compute, linear in log compute between evaluations; None outside of them."""
    for (before, loss), (after, next_loss) in itertools.pairwise(curve):
        if before <= compute <= after and before > 0:
            share = math.log(compute / before) / math.log(after / before)
            return loss + share * (next_loss - loss)
    return None


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
            factor_with_interval(factors.get(arm)),
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


def factor_with_interval(advantage: Advantage | None) -> str:
    if advantage is None:
        return ""
    return f"{_times(advantage.factor)}x {_interval(advantage.interval)}"


def _interval(ends: tuple[float, float]) -> str:
    low, high = ends
    return f"[{_times(low)}, {_times(high)}]"


def _times(factor: float) -> str:
    return f"{factor:.2f}" if factor < 1000 else f"{factor:.1e}"


def scaling_law(record: Record, narrow: bool = False) -> Figure | None:
    """Losses and fits, differences to the baseline, compute advantages, and loss against size at equal compute.

    None where nothing is fitted.
    """
    points = final_points(record)
    fits, advantages = fit_where_possible(points)
    if not fits:
        return None
    figure, (curves, differences, factors, iso) = panels(4, 2, (5.4, 3.8), narrow)
    _fits(curves, points, fits, "FLOPs")
    curves.set_ylabel("validation loss (nats per byte)")
    _differences(differences, record)
    _, published = fit_power_laws(scaling_points(), SCALING_COMPUTE)
    _advantages(factors, advantages, {advantage.arm: advantage.factor for advantage in published})
    _iso_flop(iso, iso_flop_curves(record))
    legend_below(figure, curves)
    return figure


def scaling_fit(points: Mapping[str, Sequence[Point]], unit: str) -> Figure:
    """Losses and fits, and the compute advantage, of points from anywhere."""
    fits, advantages = fit_power_laws(points)
    figure, (curves, *factors) = panels(2 if advantages else 1, 2, (4.5, 3.6), narrow=False)
    _fits(curves, points, fits, unit)
    curves.set_ylabel("loss")
    for axes in factors:
        _advantages(axes, advantages, {})
    legend_below(figure, curves)
    return figure


def write_fit(points: Mapping[str, Sequence[Point]], unit: str, folder: Path) -> Path:
    """Write folder/figures/scaling-fit.png from points that are no record's. Returns its path."""
    path = folder / FIT
    path.parent.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context(STYLE):
        write_bytes(path, png(scaling_fit(points, unit)))
    return path


def _fits(axes: Axes, points: Mapping[str, Sequence[Point]], fits: Sequence[Fit], unit: str) -> None:
    styles, lines = line_styles(list(points)), {fit.arm: fit for fit in fits}
    for arm, of_arm in points.items():
        style, fit = styles[arm], lines.get(arm)
        computes = np.array([point.compute for point in of_arm])
        line = np.geomspace(computes.min(), computes.max(), 50) if fit else np.array([])
        losses = [fit.loss(compute) for compute in line] if fit else []
        axes.plot(line, losses, label=legend_label(arm), **style)  # in the legend of all panels without a fit, too
        axes.plot(computes, [point.loss for point in of_arm], "o", color=style["color"], markersize=3.5, alpha=0.6)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("{x:g}")
    plain_log_ticks(axes.xaxis, "{x:g}")
    axes.set_title("loss against compute, L = A C^-a", loc="left")
    axes.set_xlabel(visible(f"training compute C ({unit})"))
    axes.grid(alpha=0.25)


def _differences(axes: Axes, record: Record) -> None:
    """The mean over paired seeds and its standard error, size by size."""
    baseline, *arms = record.arms
    styles, sizes = line_styles(record.arms), list(dict.fromkeys(run.at for run in record.of()))
    axes.axhline(0, color=ink(), linewidth=1)
    for index, arm in enumerate(arms):
        apart = 0.05 * (index - (len(arms) - 1) / 2)  # beside each other, so that no bar hides another
        leads = [(place + apart, *paired_lead(record, arm, size)) for place, size in enumerate(sizes)]
        known = [(place, lead, error or 0.0) for place, lead, error in leads if lead is not None]
        if known:
            places, means, errors = zip(*known, strict=True)
            axes.errorbar(places, means, errors, marker="o", markersize=3.5, elinewidth=1, **styles[arm])
    axes.set_xticks(range(len(sizes)), labels=sizes)
    axes.set_title("difference at each size", loc="left")
    axes.set_xlabel("layers x width, the least parameters first")
    axes.set_ylabel(f"nats per byte from {visible(baseline)},\n± standard error")
    axes.grid(axis="y", alpha=0.25)


def _advantages(axes: Axes, advantages: Sequence[Advantage], paper: Mapping[str, float]) -> None:
    styles = line_styles([advantage.arm for advantage in advantages])
    if advantages:
        axes.axvline(1, color=ink(), linewidth=1)
    for index, advantage in enumerate(advantages):
        low, high = advantage.interval
        colour = styles[advantage.arm]["color"]
        bounded = math.isfinite(high)
        axes.plot([low, high if bounded else advantage.factor], [index, index], color=colour, linewidth=2.4)
        axes.plot(advantage.factor, index, "o" if bounded else ">", color=colour)  # an arrow: no upper bound
        if advantage.arm in paper:
            axes.plot(paper[advantage.arm], index, **PAPER_MARK)
    axes.plot([], [], "o-", color=ink(), linewidth=2.4, label=f"{'ours' if paper else 'fit'} and 95% interval")
    if len(advantages) > 1:
        axes.margins(x=0.2)
        axes.set_xlim(axes.get_xlim())  # what holds for all at once may be ten times as wide, and ends at the frame
        for index, advantage in enumerate(advantages):
            ends = np.clip(advantage.joint, *axes.get_xlim())
            axes.plot(ends, [index, index], color=styles[advantage.arm]["color"], linewidth=0.8)
        axes.plot([], [], color=ink(), linewidth=0.8, label=f"95% for all {len(advantages)} at once")
    if any(advantage.arm in paper for advantage in advantages):
        axes.plot([], [], **PAPER_MARK, label="paper")
    axes.set_yticks(range(len(advantages)), labels=[legend_label(advantage.arm) for advantage in advantages])
    axes.set_ylim(len(advantages) - 0.4, -0.6 - 0.2 * len(advantages))  # the first on top, below the legend
    axes.set_title("compute advantage", loc="left")
    axes.grid(axis="x", alpha=0.25)
    if advantages:
        axes.set_xlabel(f"times the compute that {visible(advantages[0].baseline)}\nneeds for the same loss")
        axes.legend(frameon=False, loc="upper right")
    else:
        _say(axes, "none: see the table")


def _say(axes: Axes, why: str) -> None:
    """In place of what cannot be drawn, and of axes that would count nothing."""
    axes.text(0.5, 0.5, why, transform=axes.transAxes, ha="center", va="center")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_ticks([])
        axis.set_ticks([], minor=True)


def _iso_flop(axes: Axes, arms: Mapping[str, Mapping[float, Sequence[tuple[float, float]]]]) -> None:
    styles = line_styles(list(arms))
    labelled: set[float] = set()  # an arm whose steps cost less ends below a level that others reach
    for arm, levels in arms.items():
        style = styles[arm]
        for compute, points in levels.items():
            sizes, losses = zip(*points, strict=True)
            axes.plot(sizes, losses, marker="o", markersize=3.5, **style)
            if compute not in labelled:
                labelled.add(compute)
                axes.annotate(f" {compute:.1e}", (sizes[-1], losses[-1]), fontsize=8, va="center")
    axes.set_xscale("log")
    plain_log_ticks(axes.xaxis, EngFormatter(sep=""))
    axes.set_title("equal compute, before decay\n(FLOPs at the lines)", loc="left")
    axes.set_xlabel("parameters of the sublayers")
    axes.set_ylabel("validation loss (nats per byte)")
    axes.margins(x=0.15)
    axes.grid(alpha=0.25)
    if not any(arms.values()):
        _say(axes, "none: no level that two sizes\nreach before decay")
