"""The figures as PNG, for papers and READMEs."""

from __future__ import annotations

import io
from collections.abc import Callable

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from attnres.report.axes import (
    STYLE,
    LineStyles,
    depth_axis,
    depth_matrix_figure,
    legend_below,
    legend_label,
    line_styles,
    plain_log_ticks,
    png,
)
from attnres.report.data import ArmReport, ReportData
from attnres.report.style import DIFFERENCE_POINTS, paired_differences, summarise
from attnres.texttable import visible

FIGURES = ("loss_curves.png", "depth_matrices.png", "depth_profiles.png")


def figures(data: ReportData) -> dict[str, bytes]:
    """File name -> PNG, of the figures that the data has something to show in."""
    curves, matrices, profiles = FIGURES
    drawn: dict[str, Callable[[ReportData], Figure]] = {}
    if data.trained:
        drawn[curves] = _loss_curves
    if data.profiled:
        drawn |= {matrices: _depth_matrices, profiles: _depth_profiles}
    with mpl.rc_context(STYLE):
        return {name: png(draw(data)) for name, draw in drawn.items()}


def depth_picture(data: ReportData, form: str) -> bytes:
    """The depth matrices alone, as "png" or "svg"."""
    file = io.BytesIO()
    with mpl.rc_context(STYLE):
        _depth_matrices(data).savefig(file, format=form)
    return file.getvalue()


def _line_styles(data: ReportData) -> LineStyles:
    return line_styles([arm.name for arm in data.arms])


def _loss_curves(data: ReportData) -> Figure:
    baseline, *others = data.trained
    styles = _line_styles(data)
    curves = {arm: summarise(arm.curves) for arm in data.trained}
    pairs = {arm: paired_differences(arm, baseline) for arm in others}
    differences = {arm: summarise(pair, DIFFERENCE_POINTS) for arm, pair in pairs.items() if pair}
    figure = Figure(figsize=(12, 4.2) if differences else (9, 4.2), dpi=150, layout="constrained")
    whole, late, paired = [*figure.subplots(1, 3 if differences else 2), None][:3]
    half = max(curve["steps"][-1] for curve in curves.values()) / 2
    for arm, curve in curves.items():
        _draw_curve(styles, whole, arm, curve)
        _draw_curve(styles, late, arm, {name: values[curve["steps"] >= half] for name, values in curve.items()})
    whole.set_title("whole run", loc="left")
    whole.set_ylabel(visible(f"{data.curve_label} ({data.unit})"))
    late.set_title("second half", loc="left")
    if paired is not None:
        _draw_curve(
            styles, paired, baseline, {name: values * (name == "steps") for name, values in curves[baseline].items()}
        )
        for arm, curve in differences.items():
            _draw_curve(styles, paired, arm, curve)
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
    legend_below(figure, whole)
    return figure


def _draw_curve(styles: LineStyles, axes: Axes, arm: ArmReport, curve: dict[str, np.ndarray]) -> None:
    style = styles[arm.name]
    marker = "." if len(curve["steps"]) <= 12 else None  # few points, perhaps one: show where they are
    axes.plot(curve["steps"], curve["mean"], label=legend_label(arm.name), marker=marker, **style)
    axes.fill_between(curve["steps"], curve["low"], curve["high"], color=style["color"], alpha=0.15, linewidth=0)


def _depth_matrices(data: ReportData) -> Figure:
    return depth_matrix_figure([(arm.name, profile.mean_matrix, profile.names) for arm, profile in data.profiled])


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
    styles = _line_styles(data)
    deepest = max((profile for _, profile in data.profiled), key=lambda profile: len(profile.names))
    for axes, (name, title, kind, log) in zip(grid.flat, panels, strict=True):
        for arm, profile in data.profiled:
            values = getattr(profile, name)
            axes.plot(
                np.where(values > 0, values, np.nan) if log else values,
                label=legend_label(arm.name),
                **styles[arm.name],
            )
        if name == "entropy":
            limit = deepest.entropy_limit
            axes.plot(limit, color="#888888", alpha=0.35, linewidth=6, zorder=0, label="uniform: log(l + 1)")
        if log and any(np.any(getattr(profile, name) > 0) for _, profile in data.profiled):
            axes.set_yscale("log")
            plain_log_ticks(axes.yaxis)
        else:
            axes.set_ylim(bottom=0)
        axes.set_title(title, loc="left", fontsize=9)
        axes.set_xlabel(f"{kind} (layer)")
        depth_axis(axes.xaxis, getattr(deepest, f"{kind}_names"))
        axes.grid(alpha=0.25)
    legend_below(figure, grid[1, 0])
    return figure
