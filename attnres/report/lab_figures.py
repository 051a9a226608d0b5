"""Figures of the lab's records: the ablation and the scaling laws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from attnres.analysis.powerlaw import Advantage, Fit, Point, fit_power_laws
from attnres.lab.ablation import choose
from attnres.lab.paper import ABLATION as PAPER
from attnres.lab.paper import SCALING_COMPUTE, scaling_points
from attnres.lab.record import Record
from attnres.lab.scaling import final_points, iso_flop_curves
from attnres.lab.verdicts import comparisons, scales
from attnres.report.axes import INK
from attnres.report.style import WEIGHT_COLOURS, arm_style, visible

OURS, THEIRS = "#0072B2", "#D55E00"


def ablation(record: Record) -> Figure:
    """Each arm's difference to the baseline, seed by seed, beside the paper's."""
    tables = list(comparisons(record))
    others = [
        row for _, rows in tables for row in sorted(rows[1:], key=lambda row: (row.difference is None, row.difference))
    ]
    order = list(dict.fromkeys(row.arm for row in others))  # of the first scale; what only another one has comes below
    height = 1.6 + 0.27 * len(order)
    figure = Figure(figsize=(5.2 * len(tables) + 1.8, height), dpi=150, layout="constrained")
    panels = np.atleast_1d(figure.subplots(1, len(tables), sharey=True))
    place = {arm: len(order) - index for index, arm in enumerate(order)}
    for axes, (std, rows) in zip(panels, tables, strict=True):
        losses = _losses(record, std)
        base = losses.get(rows[0].arm, {})
        axes.axvline(0, color=INK, linewidth=1)
        for row in rows[1:]:
            if row.difference is None:
                continue
            y = place[row.arm]
            pairs = [loss - base[seed] for seed, loss in losses[row.arm].items() if seed in base]
            axes.plot(pairs, [y] * len(pairs), "o", color=OURS, alpha=0.35, markersize=4, markeredgewidth=0)
            axes.errorbar(row.difference, y, xerr=row.difference_error, fmt="|", color=OURS, markersize=9, capsize=2)
            if row.arm in PAPER and rows[0].arm in PAPER:
                axes.plot(
                    PAPER[row.arm] - PAPER[rows[0].arm], y, "D", color=THEIRS, markersize=5, markerfacecolor="none"
                )
        axes.set_title(f"embedding std {std:g}", loc="left")
        axes.set_xlabel(visible(f"validation loss minus that of {rows[0].arm} (nats per byte)"))
        axes.grid(axis="x", alpha=0.25)
        axes.set_yticks(list(place.values()), labels=[visible(arm) for arm in place])
        axes.set_ylim(0.3, len(order) + 0.7)
    panels[0].plot([], [], "o", color=OURS, alpha=0.35, label="one seed")
    panels[0].errorbar([], [], xerr=[], fmt="|", color=OURS, label="mean ± standard error")
    panels[0].plot(
        [], [], "D", color=THEIRS, markerfacecolor="none", label="paper (other data, size and unit: nats per token)"
    )
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    return figure


def tuning(record: Record) -> Figure | None:
    """Loss of each arm at each point of the learning-rate grid, over that of the rate chosen: was the grid wide enough?

    Differences are means over the tuning seeds that both rates ran on.

    None where there was nothing to choose.
    """
    stds = scales(record)
    arms = list(dict.fromkeys(cell["arm"] for cell in record["cells"]))
    factors = sorted({run["factor"] for cell in record["cells"] for run in cell["tuning"]})
    if not factors:
        return None
    figure = Figure(
        figsize=(2.6 + 1.0 * len(factors) * len(stds), 1.4 + 0.27 * len(arms)), dpi=150, layout="constrained"
    )
    panels = np.atleast_1d(figure.subplots(1, len(stds), sharey=True))
    image, clipped = None, False
    for axes, std in zip(panels, stds, strict=True):
        excess = np.full((len(arms), len(factors)), np.nan)
        for cell in record["cells"]:
            if cell["embedding_std"] != std:
                continue
            row, best = arms.index(cell["arm"]), choose(cell["tuning"])
            for factor in {run["factor"] for run in cell["tuning"]}:
                column = factors.index(factor)
                value = excess[row, column] = _excess(cell["tuning"], factor, best)
                text = "diverged" if np.isnan(value) else "best" if factor == best else f"{value:+.3f}"
                colour = "white" if value > 0.08 else INK
                axes.text(column, row, text, ha="center", va="center", fontsize=7, color=colour)
        image = axes.imshow(excess, cmap=WEIGHT_COLOURS + "_r", vmin=0, vmax=0.15, aspect="auto")
        clipped |= bool(np.nanmax(excess, initial=0.0) > 0.15)
        axes.set_xticks(range(len(factors)), labels=[f"x{factor:g}" for factor in factors])
        axes.set_yticks(range(len(arms)), labels=[visible(arm) for arm in arms])
        axes.set_title(f"embedding std {std:g}", loc="left")
        axes.set_xlabel("learning rates over the defaults")
    if image is not None:
        label = "loss above the arm's\nbest (nats per byte)"
        figure.colorbar(image, ax=panels, label=label, shrink=0.8, extend="max" if clipped else "neither")
    return figure


def _excess(tuning: Sequence[Record], factor: float, best: float | None) -> float:
    """How far the rate's loss lies above that of the best, mean over the seeds of both; NaN where a run did not end."""
    losses = {(run["factor"], run["seed"]): run["loss"] if run["status"] == "done" else np.nan for run in tuning}
    pairs = [(loss, losses.get((best, seed))) for (of, seed), loss in losses.items() if of == factor]
    return float(np.mean([loss - other for loss, other in pairs if other is not None] or np.nan))


def scaling(record: Record) -> Figure:
    """Losses and fits, the compute advantage, and loss against size at equal compute."""
    points = final_points(record)
    fits, advantages = fit_power_laws(points)
    figure = Figure(figsize=(13, 4.4), dpi=150, layout="constrained")
    curves, factors, iso = figure.subplots(1, 3, width_ratios=(1.25, 0.9, 1.25))
    _fits(curves, points, fits, "FLOPs")
    curves.set_ylabel("validation loss (nats per byte)")
    _, published = fit_power_laws(scaling_points(), SCALING_COMPUTE)
    _advantages(factors, advantages, {advantage.arm: advantage.factor for advantage in published})
    _iso_flop(iso, iso_flop_curves(record), list(points))
    handles, labels = curves.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    return figure


def scaling_fit(points: Mapping[str, Sequence[Point]], unit: str) -> Figure:
    """Losses and fits, and the compute advantage, of points from anywhere."""
    fits, advantages = fit_power_laws(points)
    figure = Figure(figsize=(8 if advantages else 5, 4), dpi=150, layout="constrained")
    curves, *factors = figure.subplots(1, 2, width_ratios=(1.4, 1)) if advantages else [figure.subplots()]
    _fits(curves, points, fits, unit)
    curves.set_ylabel("loss")
    for axes in factors:
        _advantages(axes, advantages, {})
    handles, labels = curves.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    return figure


def _fits(axes: Axes, points: Mapping[str, Sequence[Point]], fits: Sequence[Fit], unit: str) -> None:
    for index, fit in enumerate(fits):
        style = _style(index)
        computes = np.array([point.compute for point in points[fit.arm]])
        line = np.geomspace(computes.min(), computes.max(), 50)
        axes.plot(line, [fit.loss(c) for c in line], label=visible(fit.arm), **style)
        axes.plot(
            computes, [point.loss for point in points[fit.arm]], "o", color=style["color"], markersize=3.5, alpha=0.6
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("{x:g}")
    _plain_ticks(axes.xaxis, "{x:g}")
    axes.set_title("loss against compute, L = A C^-a", loc="left")
    axes.set_xlabel(visible(f"training compute C ({unit})"))
    axes.grid(alpha=0.25)


def _advantages(axes: Axes, advantages: Sequence[Advantage], paper: Mapping[str, float]) -> None:
    label = f"{'ours' if paper else 'fit'} and 95% interval"
    axes.axhline(1, color=INK, linewidth=1)
    for index, advantage in enumerate(advantages):
        low, high = advantage.interval
        axes.plot([index, index], [low, high], color=OURS, linewidth=1.6)
        axes.plot(index, advantage.factor, "o", color=OURS, label=label if index == 0 else None)
        if advantage.arm in paper:
            axes.plot(
                index,
                paper[advantage.arm],
                "D",
                color=THEIRS,
                markerfacecolor="none",
                label="paper" if index == 0 else None,
            )
    axes.set_xticks(range(len(advantages)), labels=[visible(advantage.arm) for advantage in advantages])
    axes.set_xlim(-0.6, len(advantages) - 0.4)
    axes.margins(y=0.2)  # room for the legend
    axes.set_title("compute advantage", loc="left")
    if advantages:
        axes.set_ylabel(f"times the compute that {visible(advantages[0].baseline)}\nneeds for the same loss")
    axes.grid(axis="y", alpha=0.25)
    if advantages:
        axes.legend(frameon=False)


def _iso_flop(
    axes: Axes, arms: Mapping[str, Mapping[float, Sequence[tuple[float, float]]]], names: Sequence[str]
) -> None:
    labelled: set[float] = set()  # an arm whose steps cost less ends below a level that others reach
    for arm, levels in arms.items():
        style = _style(names.index(arm))
        for compute, points in levels.items():
            sizes, losses = zip(*points, strict=True)
            axes.plot(sizes, losses, marker="o", markersize=3.5, **style)
            if compute not in labelled:
                labelled.add(compute)
                axes.annotate(f" {compute:.0e}", (sizes[-1], losses[-1]), fontsize=8, va="center")
    axes.set_xscale("log")
    _plain_ticks(axes.xaxis, "{x:.2g}")
    axes.set_title("equal compute (FLOPs at the lines), before decay", loc="left")
    axes.set_xlabel("parameters of the sublayers")
    axes.set_ylabel("validation loss (nats per byte)")
    axes.margins(x=0.15)
    axes.grid(alpha=0.25)


def _plain_ticks(axis: Axis, form: str) -> None:
    """Numbers without mathtext, which is off."""
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(form)
    axis.set_minor_formatter(NullFormatter())


def _style(index: int) -> dict:
    colour, dashes = arm_style(index)
    return {"color": colour or INK, "linestyle": (0, dashes) if dashes else "-", "linewidth": 1.6}


def _losses(record: Record, std: float) -> dict[str, dict[int, float]]:
    return {
        cell["arm"]: {run["seed"]: run["loss"] for run in cell["runs"] if run["status"] == "done"}
        for cell in record["cells"]
        if cell["embedding_std"] == std
    }
