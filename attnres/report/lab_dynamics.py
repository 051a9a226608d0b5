"""Figures of the lab's records: dynamics over depth and training, and what each sublayer is worth."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from attnres.analysis.profile import sublayer_names
from attnres.lab.dynamics_statements import done_runs, log_shares, relative_entropy
from attnres.lab.prune import THRESHOLD, by_arm
from attnres.lab.record import Record
from attnres.report.axes import INK
from attnres.report.style import SIGNED_COLOURS, WEIGHT_COLOURS, arm_style, colour_scale, depth_ticks, visible

Series = Callable[[Mapping[str, Any]], Sequence[float] | np.ndarray]
"""From one run of the record to numbers over depth."""

BAND = "line: mean over seeds; band: lowest to highest seed"


ATTENTION, MLP = slice(0, None, 2), slice(1, None, 2)


def dynamics_depth(record: Record) -> Figure:
    """Magnitudes, gradients, updates and shares over depth at the last step."""
    figure = Figure(figsize=(13.5, 6.6), dpi=150, layout="constrained")
    grid = figure.subplots(2, 4)

    def last(name: str) -> Series:
        return lambda run: run["moments"][-1][name]

    def of_kind(name: str, first: int, kind: slice) -> Series:
        return lambda run: run["moments"][-1][name][first:][kind]

    sources, sites, layers = _places(record)
    for axes, title, names, series in (
        (grid[0, 0], "h: RMS of what each site reads", sites, last("input_rms")),
        (grid[0, 1], "y: RMS of attention outputs", layers, of_kind("output_rms", 1, ATTENTION)),
        (grid[0, 2], "y: RMS of MLP outputs", layers, of_kind("output_rms", 1, MLP)),
        (grid[0, 3], "gradient RMS at each source", sources, last("gradient_rms")),
        (grid[1, 0], "share of each source over an equal one", sources, lambda run: np.exp(log_shares(run))),
        (grid[1, 1], "update of attention (relative, per step)", layers, of_kind("update", 0, ATTENTION)),
        (grid[1, 2], "update of MLP (relative, per step)", layers, of_kind("update", 0, MLP)),
        (grid[1, 3], "share of the embedding at each site", sites, lambda run: run["embedding_share"]),
    ):
        _over_depth(axes, record, title, names, series)
        if "update" not in title:
            axes.set_yscale("log")
            _plain_ticks(axes.yaxis)
    grid[1, 0].axhline(1, color="#888888", alpha=0.35, linewidth=6, zorder=0)
    figure.suptitle(f"after {record['config']['steps']} steps; {BAND}", fontsize=9)
    _legend(figure, grid[0, 0])
    return figure


def dynamics_training(record: Record) -> Figure:
    """Depth against training: h, y and gradients of every connection as heat maps, means over seeds."""
    arms = [arm for arm in record["arms"] if list(done_runs(arm))]
    rows = {
        "input_rms": "h: RMS read, by site",
        "output_rms": "y: RMS, by source",
        "gradient_rms": "gradient RMS, by source",
        "update": "update, by sublayer",
    }
    figure = Figure(figsize=(1.2 + 1.9 * len(arms), 2.3 * len(rows) + 0.5), dpi=150, layout="constrained")
    grid = figure.subplots(len(rows), len(arms), squeeze=False, sharey="row")
    sources, sites, _ = _places(record)
    names_of = {"input_rms": sites, "update": sources[1:]}
    for arm, axes in zip(arms, grid[0], strict=True):
        axes.set_title(visible(arm["arm"]), fontweight="bold")
    for axes in grid[-1]:
        axes.set_xlabel("step")
    for panels, (name, title) in zip(grid, rows.items(), strict=True):
        maps = [_map(arm, name) for arm in arms]
        positive = np.concatenate([values[values > 0] for _, values in maps])
        norm = LogNorm(positive.min(), positive.max())
        image = None
        for axes, (steps, values) in zip(panels, maps, strict=True):
            image = axes.imshow(values.T, cmap=WEIGHT_COLOURS, norm=norm, aspect="auto", interpolation="nearest")
            shown = sorted({0, len(steps) // 2, len(steps) - 1})
            axes.set_xticks(shown, labels=[str(steps[index]) for index in shown])
        _depth_axis(panels[0].yaxis, names_of.get(name, sources))
        panels[0].set_ylabel(f"{title}\n(layer)", fontsize=8)
        if image is not None:
            bar = figure.colorbar(image, ax=panels, aspect=14, pad=0.01)
            _plain_ticks(bar.ax.yaxis)
    return figure


def dynamics_weights(record: Record) -> Figure:
    """How sharp the depth weights are, and the embedding's share, over training and over depth."""
    figure = Figure(figsize=(11, 3.8), dpi=150, layout="constrained")
    training, embedding, depth = figure.subplots(1, 3)
    _over_training(training, record, "entropy of depth weights over log(l + 1)", relative_entropy)
    _over_training(embedding, record, "mean share of the embedding", lambda moment: moment["embedding_share"])
    sites = _places(record)[1]
    title = "entropy of depth weights (nats), last step"
    _over_depth(depth, record, title, sites, lambda run: run["moments"][-1]["entropy"])
    limit = np.log(np.arange(1, len(sites) + 1))
    depth.plot(limit, color="#888888", alpha=0.35, linewidth=6, zorder=0, label="equal shares: log(l + 1)")
    figure.suptitle(BAND, fontsize=9)
    _legend(figure, depth)
    return figure


def dynamics_ranks(record: Record) -> Figure:
    """Effective and semiseparable rank of M against what the values leave room for (docs/SPEC.md 2)."""
    arms = [arm for arm in record["arms"] if list(done_runs(arm))]
    figure = Figure(figsize=(10, 1.3 + 0.42 * len(arms)), dpi=150, layout="constrained")
    semiseparable, effective = figure.subplots(1, 2, sharey=True)
    places = np.arange(len(arms))[::-1]
    for axes, name in ((semiseparable, "semiseparable_mean"), (effective, "effective")):
        for place, arm in zip(places, arms, strict=True):
            values = [run["ranks"][name] for run in done_runs(arm)]
            first = arm is arms[0]
            mean = "mean over tokens, channels and seeds" if first else None
            axes.barh(place, np.mean(values), 0.6, color="#56B4E9", label=mean)
            seed = "one seed" if first else None
            axes.plot(values, [place] * len(values), "o", color=INK, markersize=3, alpha=0.6, label=seed)
    bounds = [arm["rank_bound"] for arm in arms]
    semiseparable.plot(
        bounds, places, "D", color="#D55E00", markerfacecolor="none", label="as many vectors as depth carries"
    )
    semiseparable.set_title("semiseparable rank of M", loc="left")
    effective.set_title("effective rank of M", loc="left")
    semiseparable.set_yticks(places, labels=[visible(arm["arm"]) for arm in arms])
    for axes in (semiseparable, effective):
        axes.set_xlim(left=0)
        axes.grid(axis="x", alpha=0.25)
    _legend(figure, semiseparable)
    return figure


def dynamics_matrices(record: Record) -> Figure:
    """M of every connection after training, mean over tokens, first seed."""
    arms = [arm for arm in record["arms"] if arm["mean_matrix"] is not None]
    columns = min(3, len(arms))
    rows = math.ceil(len(arms) / columns)
    figure = Figure(figsize=(3.3 * columns, 3.1 * rows + 0.3), dpi=150, layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    sources, sites, _ = _places(record)
    for axes, arm in zip(grid.flat, arms, strict=False):
        matrix = np.full((len(sites), len(sources)), np.nan)
        for site, row in enumerate(arm["mean_matrix"]):
            matrix[site, : site + 1] = row
        low, high = colour_scale(matrix)
        colours = SIGNED_COLOURS if low < 0 else WEIGHT_COLOURS
        image = axes.imshow(matrix, cmap=colours, vmin=low, vmax=high, interpolation="nearest")
        figure.colorbar(image, ax=axes, shrink=0.8, extend="max" if np.nanmax(matrix) > 1.001 * high else "neither")
        axes.set_title(visible(arm["arm"]), fontweight="bold")
        axes.set_xlabel("source (layer)")
        axes.set_ylabel("site that reads (layer)")
        _depth_axis(axes.xaxis, sources)
        _depth_axis(axes.yaxis, sites)
    for axes in grid.flat[len(arms) :]:
        axes.set_visible(False)
    return figure


def prune(record: Record) -> Figure:
    """The loss that every sublayer's removal adds: over depth, and sorted."""
    arms = {arm: [run["added"] for run in runs if run["status"] == "done"] for arm, runs in by_arm(record).items()}
    figure = Figure(figsize=(13, 4.2), dpi=150, layout="constrained")
    attention, mlp, ordered = panels = figure.subplots(1, 3, sharey=True)
    layers = 0
    lowest = min((min(added) for runs in arms.values() for added in runs), default=0)
    for index, (arm, runs) in enumerate(arms.items()):
        if runs:
            added = np.array(runs)
            layers = added.shape[1] // 2
            _band(attention, index, arm, added[:, ATTENTION])
            _band(mlp, index, arm, added[:, MLP])
            _band(ordered, index, arm, np.sort(added)[:, ::-1], range(1, 2 * layers + 1))
    for axes, title in zip(panels, ("attention off", "MLP off", "all sublayers, sorted in each seed"), strict=True):
        axes.axhline(
            THRESHOLD, color="#888888", alpha=0.35, linewidth=4, zorder=0, label=f"removable below {THRESHOLD}"
        )
        # Linear through zero: without some sublayers the model is better.
        axes.set_yscale("symlog", linthresh=THRESHOLD / 10)
        axes.set_ylim(bottom=min(2 * lowest, 0) - THRESHOLD / 20)  # the margin would be decades below zero
        axes.yaxis.set_major_formatter("{x:g}")
        axes.set_title(title, loc="left", fontsize=9)
        axes.grid(alpha=0.25)
    for axes in (attention, mlp):
        _depth_axis(axes.xaxis, sublayer_names(2 * layers)[::2])
        axes.set_xlabel("layer")
    ordered.set_xlabel("rank, costliest first")
    attention.set_ylabel("loss added (nats per byte)")
    figure.suptitle(BAND, fontsize=9)
    _legend(figure, attention)
    return figure


def _over_depth(axes: Axes, record: Record, title: str, names: Sequence[str], series: Series) -> None:
    for index, arm in enumerate(record["arms"]):
        if runs := [np.asarray(series(run), dtype=np.float64) for run in done_runs(arm)]:
            _band(axes, index, arm["arm"], np.array(runs))
    _depth_axis(axes.xaxis, names)
    axes.set_title(title, loc="left", fontsize=9)
    axes.set_xlabel("layer")
    axes.grid(alpha=0.25)


def _over_training(axes: Axes, record: Record, title: str, measure: Callable[[Mapping[str, Any]], float]) -> None:
    for index, arm in enumerate(record["arms"]):
        runs = list(done_runs(arm))
        if runs:
            steps = [moment["step"] for moment in runs[0]["moments"]]
            values = np.array([[measure(moment) for moment in run["moments"]] for run in runs])
            _band(axes, index, arm["arm"], values, steps)
    axes.set_title(title, loc="left", fontsize=9)
    axes.set_xlabel("step")
    axes.grid(alpha=0.25)


def _band(axes: Axes, index: int, name: str, values: np.ndarray, x: Sequence[float] | None = None) -> None:
    """values [seed, point]"""
    colour, dashes = arm_style(index)
    places = np.arange(values.shape[1]) if x is None else np.asarray(x)
    style: dict[str, Any] = {"color": colour or INK, "linestyle": (0, dashes) if dashes else "-", "linewidth": 1.5}
    axes.plot(places, values.mean(0), label=visible(name), **style)
    axes.fill_between(places, values.min(0), values.max(0), color=style["color"], alpha=0.15, linewidth=0)


def _map(arm: Mapping[str, Any], name: str) -> tuple[list[int], np.ndarray]:
    """(steps, [step, depth]), mean over seeds; updates begin with the second moment."""
    runs = [[moment for moment in run["moments"] if name in moment] for run in done_runs(arm)]
    return [moment["step"] for moment in runs[0]], np.mean([[moment[name] for moment in run] for run in runs], 0)


def _places(record: Record) -> tuple[Sequence[str], Sequence[str], Sequence[str]]:
    """The names of the sources, of the sites that read, and of one sublayer of each layer."""
    names = sublayer_names(2 * record["config"]["model"]["layers"])
    return ("embedding", *names), (*names, "readout"), names[::2]


def _depth_axis(axis: Axis, names: Sequence[str]) -> None:
    places, labels = zip(*depth_ticks(names), strict=True)
    axis.set_ticks(places, labels=labels)


def _plain_ticks(axis: Axis) -> None:
    """Numbers without mathtext, which is off."""
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())


def _legend(figure: Figure, axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(7, len(labels)), frameon=False)
