"""What all figures are made with: their look, axes over depth, lines of arms, the picture of a depth matrix."""

from __future__ import annotations

import io
import math
import textwrap
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import Formatter, LogLocator, MaxNLocator, NullFormatter

from attnres.analysis.profile import sublayer_names
from attnres.report.style import SIGNED_COLOURS, WEIGHT_COLOURS, arm_styles, colour_scale, depth_ticks
from attnres.texttable import visible

INK = "#1a1a1a"
# A name from a user's file is text: no mathtext in it.
STYLE: Any = {
    "text.parse_math": False,
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.color": INK,
}


def _coloured(ink: str, paper: str) -> dict[str, str]:
    inked = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
    return {**dict.fromkeys(inked, ink), "figure.facecolor": paper, "axes.facecolor": paper}


DARK_STYLE: Any = {**STYLE, **_coloured("#ececec", "#16181c")}
"""For pages that are read in the dark: page.css has the same ink and paper."""

LineStyles = dict[str, dict[str, Any]]
"""The keyword arguments of `Axes.plot` for each arm."""


def png(figure: Figure) -> bytes:
    """Draw the figure. A character of a name that the font has not becomes a box, without a word."""
    buffer = io.BytesIO()
    with _any_characters():
        FigureCanvasAgg(figure).print_png(buffer)
    return buffer.getvalue()


@contextmanager
def _any_characters() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield


def ink() -> str:
    """The colour of the text in the style that figures are drawn in, and of what no connection's colour is for."""
    return mpl.rcParams["text.color"]


def line_styles(arms: Sequence[str]) -> LineStyles:
    """How `Axes.plot` draws each arm of a figure: the colours and dashes of `arm_styles`."""
    return {
        arm: {"color": style.colour or ink(), "linestyle": (0, style.dashes) if style.dashes else "-", "linewidth": 1.6}
        for arm, style in arm_styles(arms).items()
    }


def legend_label(name: str) -> str:
    """A name as a line's label: one that begins with an underscore matplotlib leaves out of its legends."""
    text = visible(name)
    return f" {text}" if text.startswith("_") else text


def band(
    axes: Axes, name: str, values: np.ndarray, style: Mapping[str, Any], x: Sequence[float] | np.ndarray | None = None
) -> None:
    """Draw values [seed, point] as the line of their mean and a band from the lowest to the highest seed."""
    places = np.arange(values.shape[1]) if x is None else np.asarray(x)
    axes.plot(places, values.mean(0), label=legend_label(name), **style)
    axes.fill_between(places, values.min(0), values.max(0), color=style["color"], alpha=0.15, linewidth=0)


def depth_axis(axis: Axis, names: Sequence[str]) -> None:
    """Mark a few of the sites or sources along an axis by their layers."""
    places, labels = zip(*depth_ticks(names), strict=True)
    axis.set_ticks(places, labels=labels)


def plain_log_ticks(axis: Axis, form: str | Formatter = "{x:g}") -> None:
    """Write a logarithmic axis' numbers out, of what is drawn by now: its own labels are mathtext, which is off."""
    low, high = axis.get_view_interval()
    several = LogLocator(subs=(1, 2, 5)) if high < 1e2 * low else LogLocator()
    axis.set_major_locator(several if high > 5 * low else MaxNLocator(5))
    axis.set_major_formatter(form)
    axis.set_minor_formatter(NullFormatter())


def legend_below(figure: Figure, axes: Axes, columns: int = 7) -> None:
    """Name the lines under all panels, in so many columns at most and in no more than the figure has room for."""
    handles, labels = axes.get_legend_handles_labels()
    for count in range(min(columns, len(labels)), 0, -1):
        legend = figure.legend(handles, labels, loc="outside lower center", ncols=count, frameon=False)
        with _any_characters():
            if count == 1 or legend.get_window_extent().width <= figure.bbox.width:
                return
        legend.remove()


def depth_matrix_figure(matrices: Sequence[tuple[str, np.ndarray, Sequence[str] | None]]) -> Figure:
    """Draw depth matrices in a grid, each with a colour scale of its own.

    Args:
        matrices: Title, matrix and sublayers' names of each, as for `draw_depth_matrix`.
    """
    columns = min(4, len(matrices))
    rows = math.ceil(len(matrices) / columns)
    figure = Figure(figsize=(3.1 * columns + 0.4, 3.5 * rows + 0.6), dpi=150, layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    for axes, (title, matrix, names) in zip(grid.flat, matrices, strict=False):
        draw_depth_matrix(axes, matrix, title, names)
    for axes in grid.flat[len(matrices) :]:
        axes.set_visible(False)
    for axes in grid[:, 1:].flat:
        axes.set_ylabel("")
    title = textwrap.fill("weight of each source in what each site reads, mean over tokens", 40 * columns)
    figure.suptitle(f"{title}\n", fontsize=10)
    return figure


def draw_depth_matrix(axes: Axes, matrix: np.ndarray, title: str = "", names: Sequence[str] | None = None) -> None:
    """Draw a depth mixing matrix with its colour bar.

    Args:
        matrix: [site, source], L + 1 of each; above the diagonal nothing is shown.
        title: The arm's name.
        names: The L sublayers' names; those of the lab's model when not given.
    """
    names = sublayer_names(len(matrix) - 1) if names is None else names
    low, high = colour_scale(matrix)
    shown = np.ma.masked_where(np.triu(np.ones_like(matrix), 1) > 0, matrix)
    colours = SIGNED_COLOURS if low < 0 else WEIGHT_COLOURS
    image = axes.imshow(shown, cmap=colours, vmin=low, vmax=high, interpolation="nearest")
    clipped = np.nanmax(np.abs(np.tril(matrix)), initial=0) > high * 1.001
    bar = axes.figure.colorbar(image, ax=axes, orientation="horizontal", shrink=0.9, aspect=28, pad=0.02)
    ticks = [low, (low + high) / 2, high]
    labels = [f"{tick:.2g}" for tick in ticks]
    if clipped:
        labels[-1] = f"≥ {labels[-1]}"
        labels[0] = f"≤ {labels[0]}" if low < 0 else labels[0]
    bar.set_ticks(ticks, labels=labels)
    axes.set_title(textwrap.fill(visible(title), 34), fontweight="bold")
    axes.set_xlabel("source (layer)")
    sites, sources = np.nonzero(~np.isfinite(np.tril(matrix)))
    if sites.size:
        axes.plot(sources, sites, "x", color=ink(), markersize=150 / len(matrix), clip_on=False)
        axes.set_xlabel("source (layer); x: not a finite number")
    axes.set_ylabel("site that reads (layer)")
    depth_axis(axes.xaxis, ("embedding", *names))
    depth_axis(axes.yaxis, (*names, "readout"))
