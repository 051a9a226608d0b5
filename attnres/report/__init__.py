"""One self-contained HTML page and a few figures, from plain data alone."""

from typing import TYPE_CHECKING

from attnres.lazy import on_first_use

if TYPE_CHECKING:
    from attnres.report.data import ArmReport, Curve, ReportData, TokenText
    from attnres.report.depth_matrix import plot_depth_matrix
    from attnres.report.write import write_report

__all__ = ["ArmReport", "Curve", "ReportData", "TokenText", "plot_depth_matrix", "write_report"]

__getattr__ = on_first_use(
    __name__,
    data=["ArmReport", "Curve", "ReportData", "TokenText"],
    depth_matrix=["plot_depth_matrix"],
    write=["write_report"],
)
