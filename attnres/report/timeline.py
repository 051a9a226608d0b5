"""A simulated pipeline step as a picture: one row per rank, one bar per piece of work."""

from __future__ import annotations

from collections.abc import Mapping

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from attnres.analysis.timeline import Kind, Timeline
from attnres.report.draw import INK, STYLE, png

COLOURS: dict[Kind, str] = {
    "forward": "#56B4E9",
    "backward": "#E69F00",
    "input gradient": "#E69F00",
    "weight gradient": "#009E73",
}


def draw_timelines(timelines: Mapping[str, Timeline], virtual: int) -> bytes:
    """The named timelines of one schedule under each other, on one axis of time, as PNG.

    A later virtual stage of a rank is darker; an outlined gap is a rank that has nothing to do.
    """
    rows = len(next(iter(timelines.values())).actions)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(12, (1.1 + 0.28 * rows) * len(timelines)), dpi=150, layout="constrained")
        panels = figure.subplots(len(timelines), 1, sharex=True, squeeze=False)[:, 0]
        for axes, (name, timeline) in zip(panels, timelines.items(), strict=True):
            _draw(axes, timeline, virtual)
            axes.set_title(
                f"{name}: {1e3 * timeline.seconds:,.0f} ms, a rank computes {timeline.busy:.0%} of it", loc="left"
            )
        panels[-1].set_xlabel("time (ms)")
        panels[-1].set_xlim(0, 1.005e3 * max(timeline.seconds for timeline in timelines.values()))
        kinds = {span.action.kind for timeline in timelines.values() for spans in timeline.ranks for span in spans}
        handles = [Patch(facecolor=colour, label=kind) for kind, colour in COLOURS.items() if kind in kinds]
        handles.append(Patch(facecolor="white", edgecolor=INK, linewidth=0.6, label="idle"))
        if virtual > 1:
            handles.append(Patch(facecolor="none", label="darker: later virtual stage"))
        figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False)
        return png(figure)


def _draw(axes: Axes, timeline: Timeline, virtual: int) -> None:
    pipeline = len(timeline.actions)
    for rank, spans in enumerate(timeline.ranks):
        axes.broken_barh(
            [(0, 1e3 * timeline.seconds)], (rank - 0.4, 0.8), facecolor="white", edgecolor=INK, linewidth=0.6
        )
        for kind, colour in COLOURS.items():
            for turn in range(virtual):
                bars = [
                    (1e3 * span.start, 1e3 * (span.end - span.start))
                    for span in spans
                    if span.action.kind == kind and span.action.chunk // pipeline == turn
                ]
                if bars:
                    shade = _darker(colour, 0.45 * turn / max(1, virtual - 1))
                    axes.broken_barh(bars, (rank - 0.4, 0.8), facecolor=shade, edgecolor="white", linewidth=0.2)
    axes.set_ylim(pipeline - 0.4, -0.6)
    axes.set_yticks(range(pipeline), [f"rank {rank}" for rank in range(pipeline)])


def _darker(colour: str, amount: float) -> tuple[float, ...]:
    return tuple(channel * (1 - amount) for channel in to_rgb(colour))
