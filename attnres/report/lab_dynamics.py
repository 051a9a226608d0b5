"""Figures of the lab's records: dynamics over depth and training, and what each sublayer is worth."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
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
from attnres.report.figures import INK
from attnres.report.style import SIGNED_COLOURS, WEIGHT_COLOURS, arm_style, colour_scale, depth_ticks, visible

Run = Mapping[str, Any]

BAND = "line: mean over seeds; band: lowest to highest seed"


def dynamics_depth(record: Record) -> Figure:
    """Magnitudes, gradients, updates and shares over depth at the last step."""
    figure = Figure(figsize=(11, 6.6), dpi=150, layout="constrained")
    panels = figure.subplots(2, 3).flat
    last = -1
    _over_depth(next(panels), record, "h: RMS of what each site reads", lambda run: run["moments"][last]["input_rms"])
    _over_depth(next(panels), record, "y: RMS of each source", lambda run: run["moments"][last]["output_rms"])
    _over_depth(next(panels), record, "gradient RMS at each source", lambda run: run["moments"][last]["gradient_rms"])
    axes = next(panels)
    _over_depth(
        axes, record, "update: relative change of a sublayer per step", lambda run: run["moments"][last]["update"]
    )
    axes = next(panels)
    _over_depth(axes, record, "share of each source over an equal one", lambda run: np.exp(log_shares(run)))
    axes.axhline(1, color="#888888", alpha=0.35, linewidth=6, zorder=0)
    _over_depth(next(panels), record, "share of the embedding at each site", lambda run: run["embedding_share"])
    figure.suptitle(f"after {record['config']['steps']} steps; {BAND}", fontsize=9)
    _legend(figure, axes)
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
    for panels, (name, title) in zip(grid, rows.items(), strict=True):
        maps = [_map(arm, name) for arm in arms]
        positive = np.concatenate([values[values > 0] for _, values in maps])
        norm = LogNorm(positive.min(), positive.max())
        image = None
        for axes, arm, (steps, values) in zip(panels, arms, maps, strict=True):
            image = axes.imshow(values.T, cmap=WEIGHT_COLOURS, norm=norm, aspect="auto", interpolation="nearest")
            if panels is grid[0]:
                axes.set_title(visible(arm["arm"]), fontweight="bold")
            shown = sorted({0, len(steps) // 2, len(steps) - 1})
            axes.set_xticks(shown, labels=[str(steps[index]) for index in shown])
            if panels is grid[-1]:
                axes.set_xlabel("step")
        _depth_axis(panels[0].yaxis, maps[0][1].shape[1], _site_names(record), name)
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
    _over_depth(depth, record, "entropy of depth weights (nats), last step", lambda run: run["moments"][-1]["entropy"])
    depth.set_yscale("linear")
    limit = np.log(np.arange(1, len(_site_names(record)) + 1))
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
            axes.barh(place, np.mean(values), 0.6, color="#56B4E9")
            axes.plot(values, [place] * len(values), "o", color=INK, markersize=3, alpha=0.6)
    bounds = [arm["rank_bound"] for arm in arms]
    semiseparable.plot(bounds, places, "D", color="#D55E00", markerfacecolor="none", label="the values' bound")
    semiseparable.barh([], [], color="#56B4E9", label="mean over tokens, channels and seeds")
    semiseparable.plot([], [], "o", color=INK, markersize=3, alpha=0.6, label="one seed")
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
    names = _site_names(record)
    for axes, arm in zip(grid.flat, arms, strict=False):
        matrix = np.full((len(names), len(names)), np.nan)
        for site, row in enumerate(arm["mean_matrix"]):
            matrix[site, : site + 1] = row
        low, high = colour_scale(matrix)
        colours = SIGNED_COLOURS if low < 0 else WEIGHT_COLOURS
        image = axes.imshow(matrix, cmap=colours, vmin=low, vmax=high, interpolation="nearest")
        figure.colorbar(image, ax=axes, shrink=0.8, extend="max" if np.nanmax(matrix[1:]) > 1.001 * high else "neither")
        axes.set_title(visible(arm["arm"]), fontweight="bold")
        axes.set_xlabel("source (layer)")
        axes.set_ylabel("site that reads (layer)")
        _depth_axis(axes.xaxis, len(names), names, "output_rms")
        _depth_axis(axes.yaxis, len(names), names, "input_rms")
    for axes in grid.flat[len(arms) :]:
        axes.set_visible(False)
    return figure


def prune(record: Record) -> Figure:
    """The loss that every sublayer's removal adds: over depth, and sorted."""
    arms = {arm: [run["added"] for run in runs if run["status"] == "done"] for arm, runs in by_arm(record).items()}
    figure = Figure(figsize=(11, 4.2), dpi=150, layout="constrained")
    depth, ordered = figure.subplots(1, 2, sharey=True)
    for index, (arm, runs) in enumerate(arms.items()):
        if runs:
            _band(depth, index, arm, np.array(runs))
            _band(ordered, index, arm, np.sort(np.array(runs))[:, ::-1])
    sublayers = max(len(added) for runs in arms.values() for added in runs)
    for axes in (depth, ordered):
        axes.axhline(
            THRESHOLD, color="#888888", alpha=0.35, linewidth=4, zorder=0, label=f"removable below {THRESHOLD}"
        )
        # Linear through zero: some sublayers do harm.
        axes.set_yscale("symlog", linthresh=THRESHOLD / 10)
        axes.yaxis.set_major_formatter("{x:g}")
        axes.grid(alpha=0.25)
    _depth_axis(depth.xaxis, sublayers, ("embedding", *sublayer_names(sublayers)), "update")
    depth.set_title("by sublayer", loc="left")
    depth.set_xlabel("sublayer switched off (layer)")
    depth.set_ylabel("loss added (nats per byte)")
    ordered.set_title("sorted within each seed", loc="left")
    ordered.set_xlabel("rank of the sublayer, costliest first")
    figure.suptitle(BAND, fontsize=9)
    _legend(figure, depth)
    return figure


def _over_depth(axes: Axes, record: Record, title: str, series: Any) -> None:
    count = 0
    for index, arm in enumerate(record["arms"]):
        runs = [np.asarray(series(run), dtype=np.float64) for run in done_runs(arm)]
        if runs:
            count = len(runs[0])
            _band(axes, index, arm["arm"], np.array(runs))
    names = _site_names(record)
    kind = "input_rms" if title.startswith(("h:", "share of the embedding", "entropy")) else "output_rms"
    _depth_axis(axes.xaxis, count, names, "update" if count < len(names) else kind)
    axes.set_yscale("log")
    _plain_ticks(axes.yaxis)
    axes.set_title(title, loc="left", fontsize=9)
    axes.set_xlabel("layer")
    axes.grid(alpha=0.25)


def _over_training(axes: Axes, record: Record, title: str, measure: Any) -> None:
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


def _site_names(record: Record) -> tuple[str, ...]:
    """embedding and sublayers: the sources. The sites are one place behind: the last reads out."""
    return ("embedding", *sublayer_names(2 * record["config"]["model"]["layers"]))


def _depth_axis(axis: Axis, count: int, sources: Sequence[str], name: str) -> None:
    """Ticks for `count` places: sites of input_rms, sources of output_rms, or sublayers."""
    names = {"input_rms": (*sources[1:], "readout"), "update": sources[1:]}.get(name, sources)
    places, labels = zip(*depth_ticks(names[:count]), strict=True)
    axis.set_ticks(places, labels=labels)


def _plain_ticks(axis: Axis) -> None:
    """Numbers without mathtext, which is off."""
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())


def _legend(figure: Figure, axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(7, len(labels)), frameon=False)
