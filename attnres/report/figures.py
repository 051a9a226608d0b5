"""The figures as PNG, for papers and READMEs."""

from __future__ import annotations

import io
import math
import textwrap
import warnings
from collections.abc import Callable
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from attnres.analysis.profile import DepthProfile
from attnres.report.data import ArmReport, ReportData
from attnres.report.style import (
    DIFFERENCE_POINTS,
    SIGNED_COLOURS,
    WEIGHT_COLOURS,
    arm_style,
    colour_scale,
    depth_ticks,
    paired_differences,
    summarise,
    visible,
)

INK = "#1a1a1a"
# A name from a user's file is text: no mathtext in it.
STYLE: Any = {"text.parse_math": False, "font.size": 9, "axes.spines.top": False, "axes.spines.right": False}


def figures(data: ReportData) -> dict[str, bytes]:
    """File name -> PNG, of the figures that the data has something to show in."""
    drawn: dict[str, Callable[[ReportData], Figure]] = {}
    if data.trained:
        drawn["loss_curves.png"] = _loss_curves
    if data.profiled:
        drawn |= {"depth_matrices.png": _depth_matrices, "depth_profiles.png": _depth_profiles}
    with mpl.rc_context(STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        return {name: png(draw(data)) for name, draw in drawn.items()}


def png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    FigureCanvasAgg(figure).print_png(buffer)
    return buffer.getvalue()


def _line_style(data: ReportData, arm: ArmReport) -> dict:
    colour, dashes = arm_style(list(data.arms).index(arm))
    return {"color": colour or INK, "linestyle": (0, dashes) if dashes else "-", "linewidth": 1.6}


def _legend_below(figure: Figure, axes: Axes, columns: int = 7) -> None:
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(columns, len(labels)), frameon=False)


def _loss_curves(data: ReportData) -> Figure:
    baseline, *others = data.trained
    curves = {arm: summarise(arm.curves) for arm in data.trained}
    pairs = {arm: paired_differences(arm, baseline) for arm in others}
    differences = {arm: summarise(pair, DIFFERENCE_POINTS) for arm, pair in pairs.items() if pair}
    figure = Figure(figsize=(12, 4.2) if differences else (9, 4.2), dpi=150, layout="constrained")
    whole, late, paired = [*figure.subplots(1, 3 if differences else 2), None][:3]
    half = max(curve["steps"][-1] for curve in curves.values()) / 2
    for arm, curve in curves.items():
        _draw_curve(data, whole, arm, curve)
        _draw_curve(data, late, arm, {name: values[curve["steps"] >= half] for name, values in curve.items()})
    whole.set_title("whole run", loc="left")
    whole.set_ylabel(visible(f"{data.curve_label} ({data.unit})"))
    late.set_title("second half", loc="left")
    if paired is not None:
        _draw_curve(
            data, paired, baseline, {name: values * (name == "steps") for name, values in curves[baseline].items()}
        )
        for arm, curve in differences.items():
            _draw_curve(data, paired, arm, curve)
        paired.set_title(visible(f"difference to {baseline.name}, paired by seed"), loc="left")
        # The first steps differ by chance and by much.
        tail = [curve[name][len(curve["steps"]) // 10 :] for curve in differences.values() for name in ("low", "high")]
        ends = np.concatenate(tail)[np.isfinite(np.concatenate(tail))]
        if ends.size and ends.min() < ends.max():
            margin = 0.05 * (ends.max() - ends.min())
            paired.set_ylim(min(0, ends.min()) - margin, max(0, ends.max()) + margin)
    for axes in figure.axes:
        axes.set_xlabel("step")
        axes.grid(alpha=0.25)
    seeds = max(len(arm.curves) for arm in data.trained)
    if seeds > 1:
        figure.suptitle(f"line: mean of up to {seeds} seeds; band: lowest to highest seed", fontsize=9)
    _legend_below(figure, whole)
    return figure


def _draw_curve(data: ReportData, axes: Axes, arm: ArmReport, curve: dict[str, np.ndarray]) -> None:
    style = _line_style(data, arm)
    marker = "." if len(curve["steps"]) <= 12 else None  # few points, perhaps one: show where they are
    axes.plot(curve["steps"], curve["mean"], label=visible(arm.name), marker=marker, **style)
    axes.fill_between(curve["steps"], curve["low"], curve["high"], color=style["color"], alpha=0.15, linewidth=0)


def _depth_matrices(data: ReportData) -> Figure:
    arms = data.profiled
    columns = min(4, len(arms))
    rows = math.ceil(len(arms) / columns)
    figure = Figure(figsize=(3.1 * columns + 0.4, 3.5 * rows + 0.6), dpi=150, layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    for axes, (arm, profile) in zip(grid.flat, arms, strict=False):
        _draw_matrix(figure, axes, arm.name, profile)
    for axes in grid.flat[len(arms) :]:
        axes.set_visible(False)
    for axes in grid[:, 0]:
        axes.set_ylabel("site that reads (layer)")
    title = textwrap.fill("weight of each source in what each site reads, mean over tokens", 40 * columns)
    figure.suptitle(f"{title}\n", fontsize=10)
    return figure


def _draw_matrix(figure: Figure, axes: Axes, name: str, profile: DepthProfile) -> None:
    matrix = profile.mean_matrix
    low, high = colour_scale(matrix)
    shown = np.ma.masked_where(np.triu(np.ones_like(matrix), 1) > 0, matrix)
    colours = SIGNED_COLOURS if low < 0 else WEIGHT_COLOURS
    image = axes.imshow(shown, cmap=colours, vmin=low, vmax=high, interpolation="nearest")
    clipped = np.nanmax(np.abs(matrix[1:]), initial=0) > high * 1.001
    bar = figure.colorbar(image, ax=axes, orientation="horizontal", shrink=0.9, aspect=28, pad=0.02)
    ticks = [low, (low + high) / 2, high]
    labels = [f"{tick:.2g}" for tick in ticks]
    if clipped:
        labels[-1] = f"≥ {labels[-1]}"
        labels[0] = f"≤ {labels[0]}" if low < 0 else labels[0]
    bar.set_ticks(ticks, labels=labels)
    axes.set_title(visible(name), fontweight="bold")
    axes.set_xlabel("source (layer)")
    for axis, names in ((axes.xaxis, profile.source_names), (axes.yaxis, profile.site_names)):
        positions, texts = zip(*depth_ticks(names), strict=True)
        axis.set_ticks(positions, labels=texts)


def _depth_profiles(data: ReportData) -> Figure:
    figure = Figure(figsize=(10.5, 6.4), dpi=150, layout="constrained")
    grid = figure.subplots(2, 3)
    panels = [
        ("output_rms", "output magnitude (RMS of each source)", "source", True),
        ("gradient_rms", "gradient magnitude (RMS at each source)", "source", True),
        ("input_rms", "input magnitude (RMS of what each site reads)", "site", True),
        ("entropy", "entropy of depth weights (nats)", "site", False),
        ("embedding_share", "share of the embedding", "site", False),
        ("source_share", "mean share of each source", "source", False),
    ]
    deepest = max((profile for _, profile in data.profiled), key=lambda profile: len(profile.names))
    for axes, (name, title, kind, log) in zip(grid.flat, panels, strict=True):
        for arm, profile in data.profiled:
            values = getattr(profile, name)
            axes.plot(
                np.where(values > 0, values, np.nan) if log else values,
                label=visible(arm.name),
                **_line_style(data, arm),
            )
        if name == "entropy":
            limit = deepest.entropy_limit
            axes.plot(limit, color="#888888", alpha=0.35, linewidth=6, zorder=0, label="uniform: log(l + 1)")
        if log and any(np.any(getattr(profile, name) > 0) for _, profile in data.profiled):
            axes.set_yscale("log")
            # Plain numbers: the log axis' own labels are mathtext, which is off.
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.yaxis.set_major_formatter("{x:g}")
            axes.yaxis.set_minor_formatter(NullFormatter())
        else:
            axes.set_ylim(bottom=0)
        axes.set_title(title, loc="left", fontsize=9)
        axes.set_xlabel(f"{kind} (layer)")
        positions, texts = zip(*depth_ticks(getattr(deepest, f"{kind}_names")), strict=True)
        axes.set_xticks(positions, labels=texts)
        axes.grid(alpha=0.25)
    _legend_below(figure, grid[1, 0])
    return figure
