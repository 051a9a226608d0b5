"""Draws a picture for a document, as PNG or SVG."""

from __future__ import annotations

import io
import math
import textwrap
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, LogLocator, MaxNLocator, NullFormatter

from attnres.report.charts import Chart, Line, Lines, Matrix, Plot, Rows, arms_of
from attnres.report.style import MOST_TIMES, NEGATIVE_COLOUR, SIGNED_COLOURS, arm_styles, depth_colours, depth_ticks
from attnres.texttable import visible

INK, GREY = "#1a1a1a", "#888888"
# A name from a user's file is text: no mathtext in it.
STYLE: Any = {
    "text.parse_math": False,
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.color": INK,
}
SIZES = {Lines: (4.0, 3.4), Rows: (4.2, 1.5), Matrix: (3.3, 3.5)}
"""Inches of a chart; one of rows is higher by its rows."""


def png(figure: Figure) -> bytes:
    """Draw the figure. A character that the font does not have silently becomes a box."""
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        FigureCanvasAgg(figure).print_png(buffer)
    return buffer.getvalue()


def drawn(picture: Plot, form: str = "png") -> bytes:
    """The picture as "png" or "svg"."""
    with mpl.rc_context(STYLE):
        made = figure_of(picture)
        if form == "png":
            return png(made)
        buffer = io.BytesIO()
        made.savefig(buffer, format=form)
        return buffer.getvalue()


def figure_of(picture: Plot) -> Figure:
    charts = picture.charts
    columns = min(picture.columns, len(charts))
    rows = math.ceil(len(charts) / columns)
    width, height = (max(of) for of in zip(*map(_size, charts), strict=True))
    figure = Figure(figsize=(width * columns, height * rows + 0.4), dpi=150, layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    styles = line_styles(arms_of(picture))
    for axes, chart in zip(grid.flat, charts, strict=False):
        axes.set_title(textwrap.fill(visible(chart.title), 44), loc="left", fontsize=9)
        {Lines: _lines, Rows: _rows, Matrix: _matrix}[type(chart)](axes, chart, styles)  # type: ignore[operator]
    for axes in grid.flat[len(charts) :]:
        axes.set_visible(False)
    if picture.note:
        figure.suptitle(textwrap.fill(visible(picture.note), int(13 * width * columns)), fontsize=9)
    _legend(figure, [axes for axes in grid.flat if axes.get_legend_handles_labels()[1]])
    return figure


def _size(chart: Chart) -> tuple[float, float]:
    width, height = SIZES[type(chart)]
    if isinstance(chart, Rows):
        return width, height + 0.27 * len(chart.rows)
    return width, height


def line_styles(arms: Sequence[str]) -> dict[str, dict[str, Any]]:
    """How `Axes.plot` draws each arm of a figure: the colours and dashes of `arm_styles`."""
    return {
        arm: {"color": style.colour or INK, "linestyle": (0, style.dashes) if style.dashes else "-", "linewidth": 1.6}
        for arm, style in arm_styles(arms).items()
    }


def _legend(figure: Figure, named: Sequence[Axes]) -> None:
    """Name the lines under all charts, in as many columns as there is room for."""
    found = {label: handle for axes in named for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    for count in range(min(7, len(found)), 0, -1):
        legend = figure.legend(found.values(), list(found), loc="outside lower center", ncols=count, frameon=False)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Glyph .* missing from font")
            if count == 1 or legend.get_window_extent().width <= figure.bbox.width:
                return
        legend.remove()


def _lines(axes: Axes, chart: Lines, styles: Mapping[str, dict[str, Any]]) -> None:
    bars = [line for line in chart.lines if line.as_ == "bars"]
    for line in chart.lines:
        apart = 0.05 * (bars.index(line) - (len(bars) - 1) / 2) if line in bars else 0.0  # no bar hides another
        _draw_line(axes, line, np.asarray(line.x, float) + apart, chart.log, styles.get(line.name, {}))
    if chart.zero:
        low, high = axes.get_ylim()
        axes.set_ylim(min(0, low), max(0, high))
    values = np.concatenate([np.asarray(line.y, float) for line in chart.lines] or [np.zeros(0)])
    if chart.log and np.any(values > 0):
        axes.set_yscale("log")
        plain_log_ticks(axes.yaxis)
    if chart.log_x:
        axes.set_xscale("log")
        plain_log_ticks(axes.xaxis)
    if chart.ticks:
        places, labels = zip(*chart.ticks, strict=True)
        axes.set_xticks(places, labels=list(map(visible, labels)))
    axes.set_xlabel(visible(chart.x_label))
    axes.grid(alpha=0.25)
    if not len(values):
        axes.text(0.5, 0.5, "nothing to show", transform=axes.transAxes, ha="center")


def _draw_line(axes: Axes, line: Line, x: np.ndarray, log: bool, style: Mapping[str, Any]) -> None:
    y = np.asarray(line.y, float)
    y = np.where(y > 0, y, np.nan) if log else y
    if line.as_ == "guide":
        axes.plot(x, y, color=GREY, alpha=0.35, linewidth=6, zorder=0, label=visible(line.name))
        return
    if line.as_ == "dots":
        axes.plot(x, y, "o", color=style["color"], markersize=3.5, alpha=0.6)
        return
    axes.plot(x, y, label=visible(line.name), marker="." if len(x) <= 12 else None, **style)
    if line.low is None or line.high is None:
        return
    low, high = np.asarray(line.low, float), np.asarray(line.high, float)
    if line.as_ == "bars":
        axes.vlines(x, low, high, color=style["color"], linewidth=1)
    else:
        axes.fill_between(x, low, high, color=style["color"], alpha=0.15, linewidth=0)


def _rows(axes: Axes, chart: Rows, styles: object) -> None:
    if chart.zero is not None:
        axes.axvline(chart.zero, color=INK, linewidth=1)
    for y, row in enumerate(chart.rows):
        colour = line_styles([row.name])[row.name]["color"]  # two may have one: all are named
        axes.plot(row.points, [y] * len(row.points), "o", color=colour, alpha=0.45, markersize=4, markeredgewidth=0)
        for ends, thick in ((row.interval, 2.4), (row.wider, 0.8)):
            if ends is not None and np.isfinite(ends[0]):
                reached = [end for end in (*ends, row.mean) if end is not None and np.isfinite(end)]
                axes.plot([min(reached), max(reached)], [y, y], color=colour, linewidth=thick)
        if row.mean is not None:
            bounded = row.interval is None or np.isfinite(row.interval[1])
            axes.plot(row.mean, y, "|" if bounded else ">", color=colour, markersize=9)  # an arrow: no upper bound
        if row.mark is not None:
            axes.plot(row.mark, y, "D", color=GREY, markerfacecolor="none", markersize=5)
    axes.set_yticks(range(len(chart.rows)), labels=[visible(row.name) for row in chart.rows])
    axes.set_ylim(len(chart.rows) - 0.4, -0.6)
    axes.set_xlabel(textwrap.fill(visible(chart.x_label), 40))
    axes.grid(axis="x", alpha=0.25)


def _matrix(axes: Axes, chart: Matrix, styles: object) -> None:
    values = chart.values
    shown = np.ma.masked_where(np.triu(np.ones_like(values), 1) > 0, depth_colours(values))
    colours = mpl.colormaps[SIGNED_COLOURS].with_extremes(under=NEGATIVE_COLOUR)
    image = axes.imshow(shown, cmap=colours, vmin=0, vmax=1, interpolation="nearest", aspect="equal")
    negative = bool((shown < 0).any())
    bar = axes.figure.colorbar(image, ax=axes, orientation="horizontal", shrink=0.9, aspect=28, pad=0.02)
    lowest = "0 (orange: below)" if negative else "0"
    bar.set_ticks([0, 0.5, 1], labels=[lowest, "the row's mean", f"≥ {MOST_TIMES} times"])
    sites, sources = np.nonzero(~np.isfinite(np.tril(values)))
    if sites.size:
        axes.plot(sources, sites, "x", color=INK, markersize=150 / len(values), clip_on=False)
    axes.set_xlabel("source (layer)" + "; x: not a finite number" * bool(sites.size))
    axes.set_ylabel("site that reads (layer)")
    for axis, names in ((axes.xaxis, chart.sources), (axes.yaxis, chart.sites)):
        places, labels = zip(*depth_ticks(names), strict=True)
        axis.set_ticks(places, labels=list(map(visible, labels)))


def plain_log_ticks(axis: Axis) -> None:
    """Write a logarithmic axis' numbers out, of what is drawn by now: its own labels are mathtext, which is off."""
    low, high = axis.get_view_interval()
    several = LogLocator(subs=(1, 2, 5)) if high < 1e2 * low else LogLocator()
    axis.set_major_locator(several if high > 5 * low else MaxNLocator(5))
    axis.set_major_formatter(EngFormatter(sep="") if 1e4 < high < 1e12 else "{x:g}")
    axis.set_minor_formatter(NullFormatter())
