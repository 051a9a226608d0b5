"""One self-contained HTML page and a few figures, from plain data alone."""

from typing import TYPE_CHECKING

from attnres.lazy import on_first_use

if TYPE_CHECKING:
    from attnres.report.depth_matrix import plot_depth_matrix

__all__ = ["plot_depth_matrix"]

__getattr__ = on_first_use(__name__)
