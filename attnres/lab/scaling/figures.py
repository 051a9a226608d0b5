"""Figures of scaling laws."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from attnres.analysis.powerlaw import Advantage, Fit, Point, fit_power_laws, fit_where_possible
from attnres.files import write_bytes
from attnres.lab.figures import PAPER_MARK, panels
from attnres.lab.paper import SCALING_COMPUTE, scaling_points
from attnres.lab.scaling.fit import final_points, iso_flop_curves, paired_lead
from attnres.lab.scaling.record import ScalingRecord
from attnres.report.axes import STYLE, ink, legend_below, legend_label, line_styles, plain_log_ticks, png
from attnres.texttable import visible

FIT = "figures/scaling-fit.png"


def scaling_law(record: ScalingRecord, narrow: bool = False) -> Figure | None:
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


def _differences(axes: Axes, record: ScalingRecord) -> None:
    """The mean over paired seeds and its standard error, size by size."""
    baseline, *arms = record.arms
    styles, sizes = line_styles(record.arms), list(dict.fromkeys(run.size for run in record.runs))
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
