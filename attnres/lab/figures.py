"""What the figures of all experiments are made with: panels that a page shows beside each other and a phone below."""

from __future__ import annotations

import math
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

NARROW = 4.2
"""The width in inches of a figure for a phone: there its letters are about as large as the text."""
PAPER_MARK: dict[str, Any] = {"marker": "D", "linestyle": "", "color": "#888888", "markerfacecolor": "none"}
"""How what the paper measured is drawn: in no connection's colour."""
GUIDE: dict[str, Any] = {"color": "#888888", "alpha": 0.35, "zorder": 0}
"""A line to read others against."""
BAND = "line: mean over seeds; band: lowest to highest seed"


def panels(
    count: int, columns: int, size: tuple[float, float], narrow: bool, narrow_columns: int = 1, **options: Any
) -> tuple[Figure, list[Axes]]:
    """A figure of so many panels in rows, and its axes.

    Args:
        count: Number of panels, at least one.
        columns: Panels in a row.
        size: Width and height of one panel in inches; a narrow figure keeps the height.
        narrow: Whether the figure is for a phone.
        narrow_columns: Panels in a row there.
        options: For `Figure.subplots`.
    """
    columns = min(count, narrow_columns if narrow else columns)
    rows = math.ceil(count / columns)
    width = NARROW if narrow else size[0] * columns
    figure = Figure(figsize=(width, size[1] * rows + 0.4), dpi=150, layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False, **options)
    for axes in grid.flat[count:]:
        axes.set_visible(False)
    for axes in grid.flat[:count]:
        axes.locator_params(axis="x", nbins=int(1.6 * width / columns))  # numbers of three decimals have room
    return figure, list(grid.flat[:count])
