"""Figures of dynamics: magnitudes over depth and training, depth weights, ranks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from attnres.analysis.profile import sublayer_names
from attnres.lab.depth import log_shares, relative_entropy
from attnres.lab.figures import BAND, GUIDE, NARROW, panels
from attnres.lab.runs import Record, Run, done
from attnres.report.axes import band, depth_axis, draw_depth_matrix, ink, legend_below, line_styles, plain_log_ticks
from attnres.report.style import WEIGHT_COLOURS
from attnres.texttable import visible

Series = Callable[[Run], Sequence[float] | np.ndarray]
"""What reads numbers over depth off one run of the record."""

ATTENTION, MLP = slice(0, None, 2), slice(1, None, 2)


def depth(record: Record, narrow: bool = False) -> Figure:
    """Magnitudes, gradients, updates and shares over depth at the last step."""
    figure, grid = panels(8, 4, (3.4, 3.1), narrow)

    def last(name: str) -> Series:
        return lambda run: run.measured["moments"][-1][name]

    def of_kind(name: str, first: int, kind: slice) -> Series:
        return lambda run: run.measured["moments"][-1][name][first:][kind]

    sources, sites, layers = _places(record)
    series_of = (
        ("h: RMS of what each site reads", sites, last("input_rms")),
        ("y: RMS of attention outputs", layers, of_kind("output_rms", 1, ATTENTION)),
        ("y: RMS of MLP outputs", layers, of_kind("output_rms", 1, MLP)),
        ("gradient RMS at each source", sources, last("gradient_rms")),
        ("share of each source over an equal one", sources, lambda run: np.exp(log_shares(run))),
        ("update of attention (relative, per step)", layers, of_kind("update", 0, ATTENTION)),
        ("update of MLP (relative, per step)", layers, of_kind("update", 0, MLP)),
        ("share of the embedding at each site", sites, lambda run: run.measured["embedding_share"]),
    )
    for axes, (title, names, series) in zip(grid, series_of, strict=True):
        _over_depth(axes, record, title, names, series)
        if "update" not in title:
            axes.set_yscale("log")
            plain_log_ticks(axes.yaxis)
    grid[4].axhline(1, linewidth=6, **GUIDE)
    steps = _first_done(record).measured["moments"][-1]["step"]
    figure.suptitle(_wrapped(f"after {steps} steps; {BAND}", narrow), fontsize=9)
    legend_below(figure, grid[0], columns=3 if narrow else 7)
    return figure


def training(record: Record, narrow: bool = False) -> Figure:
    """Depth against training: h, y and gradients of every connection as heat maps, means over seeds."""
    arms = [arm for arm in record.arms if done(record.of(arm))]
    rows = {
        "input_rms": "h: RMS read, by site",
        "output_rms": "y: RMS, by source",
        "gradient_rms": "gradient RMS, by source",
        "update": "update, by sublayer",
    }
    columns = min(2, len(arms)) if narrow else len(arms)
    lines = math.ceil(len(arms) / columns)
    size = (NARROW if narrow else 1.2 + 1.9 * columns, 2.3 * lines * len(rows) + 0.5)
    figure = Figure(figsize=size, dpi=150, layout="constrained")
    sources, sites, _ = _places(record)
    names_of = {"input_rms": sites, "update": sources[1:]}
    parts: Any = figure.subfigures(len(rows), 1)
    for part, (name, title) in zip(parts, rows.items(), strict=True):
        grid = part.subplots(lines, columns, squeeze=False, sharey=True)
        maps = [_map(record, arm, name) for arm in arms]
        positive = np.concatenate([values[values > 0] for _, values in maps])
        norm = LogNorm(positive.min(), positive.max())
        for axes, arm, (steps, values) in zip(grid.flat, arms, maps, strict=False):
            image = axes.imshow(values.T, cmap=WEIGHT_COLOURS, norm=norm, aspect="auto", interpolation="nearest")
            shown = sorted({0, len(steps) // 2, len(steps) - 1})
            axes.set_xticks(shown, labels=[str(steps[index]) for index in shown])
            axes.set_title(visible(arm), fontweight="bold")
        for axes in grid[-1]:
            axes.set_xlabel("step")
        for axes in grid.flat[len(arms) :]:
            axes.set_visible(False)
        for axes in grid[:, 0]:
            depth_axis(axes.yaxis, names_of.get(name, sources))
            axes.set_ylabel(f"{title}\n(layer)", fontsize=8)
        bar = part.colorbar(image, ax=grid, aspect=14 * lines, pad=0.01)
        plain_log_ticks(bar.ax.yaxis)
    return figure


def weights(record: Record, narrow: bool = False) -> Figure:
    """How sharp the depth weights are, and the embedding's share, over training and over depth."""
    figure, (training, embedding, depth) = panels(3, 3, (3.7, 3.4), narrow)
    _over_training(training, record, "entropy of depth weights over log(l + 1)", relative_entropy)
    _over_training(embedding, record, "mean share of the embedding", lambda moment: moment["embedding_share"])
    sites = _places(record)[1]
    title = "entropy of depth weights (nats), last step"
    _over_depth(depth, record, title, sites, lambda run: run.measured["moments"][-1]["entropy"])
    limit = np.log(np.arange(1, len(sites) + 1))
    depth.plot(limit, linewidth=6, **GUIDE, label="equal shares: log(l + 1)")
    figure.suptitle(_wrapped(BAND, narrow), fontsize=9)
    legend_below(figure, depth, columns=3 if narrow else 7)
    return figure


def ranks(record: Record, narrow: bool = False) -> Figure:
    """Effective and semiseparable rank of M against what the values leave room for (docs/SPEC.md 2)."""
    arms = [arm for arm in record.arms if done(record.of(arm))]
    figure, (semiseparable, effective) = panels(2, 2, (5.0, 1.0 + 0.42 * len(arms)), narrow, sharey=True)
    places, styles = np.arange(len(arms))[::-1], line_styles(arms)
    for axes, name in ((semiseparable, "semiseparable_mean"), (effective, "effective")):
        for place, arm in zip(places, arms, strict=True):
            values = [run.measured["ranks"][name] for run in done(record.of(arm))]
            axes.barh(place, np.mean(values), 0.6, color=styles[arm]["color"], alpha=0.6)
            axes.plot(values, [place] * len(values), "o", color=ink(), markersize=3, alpha=0.6)
        axes.set_xlim(left=0)
        axes.grid(axis="x", alpha=0.25)
    semiseparable.barh([], [], color=ink(), alpha=0.3, label="mean over tokens, channels and seeds")
    semiseparable.plot([], [], "o", color=ink(), markersize=3, alpha=0.6, label="one seed")
    bounds = [record.found[arm]["rank_bound"] for arm in arms]
    semiseparable.plot(
        bounds, places, "D", color=ink(), markerfacecolor="none", label="as many vectors as depth carries"
    )
    semiseparable.set_title("semiseparable rank of M", loc="left")
    effective.set_title("effective rank of M", loc="left")
    semiseparable.set_yticks(places, labels=[visible(arm) for arm in arms])
    legend_below(figure, semiseparable, columns=1 if narrow else 3)
    return figure


def matrices(record: Record, narrow: bool = False) -> Figure:
    """M of every connection after training, mean over tokens, first seed."""
    arms = [arm for arm in record.arms if record.found[arm].get("mean_matrix")]
    figure, grid = panels(len(arms), 3, (3.3, 3.5), narrow)
    for axes, arm in zip(grid, arms, strict=True):
        rows = record.found[arm]["mean_matrix"]
        matrix = np.zeros((len(rows), len(rows)))
        for site, row in enumerate(rows):
            matrix[site, : site + 1] = row
        draw_depth_matrix(axes, matrix, arm)
    return figure


def _over_depth(axes: Axes, record: Record, title: str, names: Sequence[str], series: Series) -> None:
    styles = line_styles(list(record.arms))
    for arm in record.arms:
        if runs := [np.asarray(series(run), dtype=np.float64) for run in done(record.of(arm))]:
            band(axes, arm, np.array(runs), styles[arm])
    depth_axis(axes.xaxis, names)
    axes.set_title(title, loc="left", fontsize=9)
    axes.set_xlabel("layer")
    axes.grid(alpha=0.25)


def _over_training(axes: Axes, record: Record, title: str, measure: Callable[[Mapping[str, Any]], float]) -> None:
    styles = line_styles(list(record.arms))
    for arm in record.arms:
        if runs := done(record.of(arm)):
            steps = [moment["step"] for moment in runs[0].measured["moments"]]
            values = np.array([[measure(moment) for moment in run.measured["moments"]] for run in runs])
            band(axes, arm, values, styles[arm], steps)
    axes.set_title(title, loc="left", fontsize=9)
    axes.set_xlabel("step")
    axes.grid(alpha=0.25)


def _map(record: Record, arm: str, name: str) -> tuple[list[int], np.ndarray]:
    """(steps, [step, depth]), mean over seeds; updates begin with the second moment."""
    runs = [[moment for moment in run.measured["moments"] if moment.get(name)] for run in done(record.of(arm))]
    return [moment["step"] for moment in runs[0]], np.mean([[moment[name] for moment in run] for run in runs], 0)


def _wrapped(title: str, narrow: bool) -> str:
    return title.replace("; ", "\n") if narrow else title


def _places(record: Record) -> tuple[Sequence[str], Sequence[str], Sequence[str]]:
    """The names of the sources, of the sites that read, and of one sublayer of each layer."""
    names = sublayer_names(len(_first_done(record).measured["source_share"]) - 1)
    return ("embedding", *names), (*names, "readout"), names[::2]


def _first_done(record: Record) -> Run:
    """A run that stands for all: they have as many numbers, at the same steps."""
    return next(run for arm in record.arms for run in done(record.of(arm)))
