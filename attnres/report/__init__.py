"""One self-contained HTML page and a few figures, from plain data alone."""

from attnres.report.data import ArmReport, Curve, ReportData, TokenText
from attnres.report.depth_matrix import plot_depth_matrix
from attnres.report.write import write_report

__all__ = ["ArmReport", "Curve", "ReportData", "TokenText", "plot_depth_matrix", "write_report"]
