"""The curves of `attnres bench curves`, drawn from what it measured.

python -m attnres.report.curves results/bench-curves.json docs/figures
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from attnres.files import write_bytes
from attnres.report.axes import STYLE, png
from attnres.report.style import ARM_COLOURS

CURVES = "performance-curves.png"

AXES = {"sources": "sources", "time": "tokens per sequence", "dim": "channels d"}

LIMIT = "bytes that must move at the copy bandwidth"

LINES: dict[str, tuple[str, Any]] = {
    "stacked": ("stacked eager PyTorch", {"color": ARM_COLOURS[2], "marker": "s"}),
    "compiled reference": ("torch.compile of the reference", {"color": ARM_COLOURS[3], "marker": "^"}),
    "attnres": ("attnres", {"color": ARM_COLOURS[1], "marker": "o"}),
    LIMIT: (LIMIT, {"color": "#777777", "linestyle": "--"}),
}


def draw_curves(rows: Sequence[dict[str, Any]], folder: Path) -> Path:
    """Write performance-curves.png from rows of the part `curves`, as its JSON holds them. Returns the path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / CURVES
    with mpl.rc_context(STYLE):
        write_bytes(path, png(_figure([row["details"] for row in rows])))
    return path


def _figure(points: Sequence[dict[str, Any]]) -> Figure:
    figure = Figure(figsize=(10, 3.8), dpi=150, layout="constrained")
    for axes, (axis, label) in zip(figure.subplots(1, len(AXES), sharey=True), AXES.items(), strict=True):
        _panel(axes, axis, [point for point in points if point["axis"] == axis])
        axes.set_xlabel(label)
    first = figure.axes[0]
    first.set_ylabel("forward + backward, ms")
    figure.suptitle(f"where not varied: {points[0]['elsewhere']}, float32", fontsize=9)
    figure.legend(*first.get_legend_handles_labels(), loc="outside lower center", ncols=len(LINES), frameon=False)
    return figure


def _panel(axes: Axes, axis: str, points: Sequence[dict[str, Any]]) -> None:
    for name, (label, style) in LINES.items():
        seen = [point for point in points if f"{name}, ms" in point]
        xs, ys = [point[axis] for point in seen], [point[f"{name}, ms"] for point in seen]
        axes.plot(xs, ys, label=label, linewidth=1.6, markersize=4, **style)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.xaxis.set_major_locator(FixedLocator(sorted({point[axis] for point in points})))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:.0f}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
    axes.grid(axis="y", color="#e5e5e5")
    axes.set_axisbelow(True)


if __name__ == "__main__":
    record, target = map(Path, sys.argv[1:])
    print(draw_curves(json.loads(record.read_text())["rows"], target))
