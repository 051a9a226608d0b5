"""What a figure is: a few charts as plain numbers. charts/*.js draws them on a page, draw.py for documents."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from attnres.report.style import arm_styles, depth_ticks
from attnres.texttable import visible

Numbers = Sequence[float] | np.ndarray
Ticks = Sequence[tuple[float, str]]


@dataclass(frozen=True, kw_only=True, eq=False)
class Line:
    """A line in the style of the arm of its name, or in grey what others are held against."""

    name: str
    x: Numbers
    y: Numbers
    """NaN: a gap."""
    low: Numbers | None = None
    high: Numbers | None = None
    as_: Literal["line", "dots", "bars", "guide"] = "line"
    """dots: no line; bars: low and high are error bars and no band; guide: grey and wide."""
    seeds: int = 1


@dataclass(frozen=True, kw_only=True, eq=False)
class Lines:
    """A chart of lines. The title has the unit of the numbers."""

    title: str
    x_label: str
    lines: Sequence[Line]
    log_x: bool = False
    log: bool = False
    zero: bool = False
    """Whether the axis of the numbers has 0 in it."""
    ticks: Ticks | None = None
    names: Sequence[str] | None = None
    """Of each whole x."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """An arm's numbers in a row of points."""

    name: str
    points: Sequence[float] = ()
    mean: float | None = None
    interval: tuple[float, float] | None = None
    wider: tuple[float, float] | None = None
    mark: float | None = None
    """Somebody else's number."""


@dataclass(frozen=True, kw_only=True)
class Rows:
    """A row for each arm, the first on top."""

    title: str
    x_label: str
    rows: Sequence[Row]
    zero: float | None = None
    """Where a line stands that all are held against."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Matrix:
    """A depth matrix under `style.depth_colours`, of which there is the triangle alone."""

    title: str
    views: Sequence[np.ndarray]
    """[site, source]: a figure shows the same view of all its charts. What is not there is NaN."""
    names: Sequence[str]
    """Of the L sublayers."""
    note: str = ""

    @property
    def sites(self) -> tuple[str, ...]:
        return (*self.names, "readout")

    @property
    def sources(self) -> tuple[str, ...]:
        return ("embedding", *self.names)


Chart = Lines | Rows | Matrix


@dataclass(frozen=True, kw_only=True)
class Plot:
    """A figure: charts that belong together, and the name of its file in a document."""

    name: str
    alt: str
    """What it shows, for those who do not see it."""
    charts: Sequence[Chart]
    note: str = ""
    how: str = ""
    """How a page says that it is to be read, behind the note."""
    columns: int = 4
    """Charts beside each other in a document, at most."""
    views: Sequence[Mapping[str, Any]] = field(default_factory=list)
    """What says which token a view is of, if the matrices have several."""


def over_depth(title: str, kind: str, names: Sequence[str], lines: Sequence[Line], log: bool = False) -> Lines:
    """A chart over the sites or sources. kind: "site" or "source"."""
    return Lines(
        title=title,
        x_label=kind if kind == "layer" else f"{kind} (layer)",
        lines=lines,
        log=log,
        zero=not log,
        ticks=depth_ticks(names),
        names=names,
    )


def band(name: str, values: np.ndarray, x: Numbers | None = None) -> Line:
    """Values [seed, point] as the line of their mean and a band from the lowest to the highest seed."""
    places = np.arange(values.shape[1]) if x is None else x
    return Line(name=name, x=places, y=values.mean(0), low=values.min(0), high=values.max(0), seeds=len(values))


def arms_of(pictures: Sequence[Plot]) -> list[str]:
    """The arms that have lines, in their order."""
    lines = [line for one in pictures for chart in one.charts if isinstance(chart, Lines) for line in chart.lines]
    return list(dict.fromkeys(line.name for line in lines if line.as_ != "guide"))


def payload(picture: Plot) -> dict[str, Any]:
    """What page.js draws. What is not finite is null; of other numbers but places on an axis there are four digits."""
    styles = {arm: _style(style) for arm, style in arm_styles(arms_of([picture])).items()}
    views = [{name: visible(str(text)) for name, text in view.items()} for view in picture.views]
    charts = [_chart(chart, styles) for chart in picture.charts]
    arms = [{"name": visible(arm), **style} for arm, style in styles.items()]
    return {"name": picture.name, "arms": arms, "charts": charts, "views": views}


def _style(style: Any) -> dict[str, str]:
    return {"colour": style.colour or "currentColor", "dashes": " ".join(map(str, style.dashes))}


def _chart(chart: Chart, styles: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
    shown: dict[str, Any] = {"title": visible(chart.title)}
    if isinstance(chart, Rows):
        return shown | {
            "kind": "rows",
            "xLabel": visible(chart.x_label),
            "zero": chart.zero,
            "rows": [_row(row) for row in chart.rows],
        }
    if isinstance(chart, Lines):
        grey = {"colour": "#888888", "dashes": ""}
        return shown | {
            "kind": "lines",
            "xLabel": visible(chart.x_label),
            **{"logX": chart.log_x, "log": chart.log, "zero": chart.zero, "ticks": chart.ticks},
            "names": chart.names and list(map(visible, chart.names)),
            "lines": [_line(line, styles.get(line.name, grey)) for line in chart.lines],
        }
    return shown | {
        "kind": "depth",
        "name": visible(chart.title),
        "description": visible(chart.note),
        "sites": list(map(visible, chart.sites)),
        "sources": list(map(visible, chart.sources)),
        "siteTicks": [(place, visible(label)) for place, label in depth_ticks(chart.sites)],
        "sourceTicks": [(place, visible(label)) for place, label in depth_ticks(chart.sources)],
        "views": [[numbers(row[: site + 1]) for site, row in enumerate(view)] for view in chart.views],
    }


def _line(line: Line, style: Mapping[str, str]) -> dict[str, Any]:
    made = {"name": visible(line.name), **style, "as": line.as_, "seeds": line.seeds}
    made |= {"x": [float(x) for x in line.x], "y": numbers(line.y)}
    return (
        made if line.low is None or line.high is None else made | {"low": numbers(line.low), "high": numbers(line.high)}
    )


def _row(row: Row) -> dict[str, Any]:
    return {
        "name": visible(row.name),
        **_style(arm_styles([row.name])[row.name]),  # two may have one: all are named
        "points": numbers(row.points),
        **{name: None if (value := getattr(row, name)) is None else numbers([value])[0] for name in ("mean", "mark")},
        **{name: None if (ends := getattr(row, name)) is None else numbers(ends) for name in ("interval", "wider")},
    }


def numbers(values: Numbers) -> list[float | None]:
    return [float(f"{value:.4g}") if math.isfinite(value) else None for value in np.asarray(values, float).tolist()]
