"""What a figure is: a few charts as plain numbers, which draw.py draws."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from attnres.report.style import depth_ticks

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
    values: np.ndarray
    """[site, source]; NaN where there is none."""
    names: Sequence[str]
    """Of the L sublayers."""

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
    """How it is to be read: what a page says below it."""
    columns: int = 4
    """Charts beside each other in a document, at most."""


def over_depth(title: str, kind: str, names: Sequence[str], lines: Sequence[Line], log: bool = False) -> Lines:
    """A chart over the sites, sources or sublayers, which kind says. names: of the sublayers."""
    along = {"site": (*names, "readout"), "source": ("embedding", *names), "sublayer": names}[kind]
    ticks = depth_ticks(along)
    return Lines(title=title, x_label=f"{kind} (layer)", lines=lines, log=log, zero=not log, ticks=ticks)


def band(name: str, values: np.ndarray, x: Numbers | None = None) -> Line:
    """Values [seed, point] as the line of their mean and a band from the lowest to the highest seed."""
    places = np.arange(values.shape[1]) if x is None else x
    return Line(name=name, x=places, y=values.mean(0), low=values.min(0), high=values.max(0))


def arms_of(picture: Plot) -> list[str]:
    """The arms that have lines, in their order."""
    lines = [line for chart in picture.charts if isinstance(chart, Lines) for line in chart.lines]
    return list(dict.fromkeys(line.name for line in lines if line.as_ != "guide"))
