"""The figure of probes."""

from __future__ import annotations

import statistics

from matplotlib.figure import Figure

from attnres.analysis.comparison import standard_error
from attnres.lab.figures import panels
from attnres.lab.probes.claims import gains
from attnres.lab.probes.record import ProbesRecord
from attnres.report.axes import ink, legend_below, line_styles
from attnres.texttable import visible


def gained(record: ProbesRecord, narrow: bool = False) -> Figure | None:
    """Every task's gain over the baseline in percentage points, seed by seed; None for the baseline alone."""
    of_tasks = [gains(record, index) for index in range(len(record.tasks))]
    arms = list(of_tasks[0])
    if not arms:
        return None
    styles = line_styles(arms)
    figure, axes_of_all = panels(len(of_tasks), 3, (3.2, 1.3 + 0.3 * len(arms)), narrow, sharey=True)
    for axes, task, of_arms in zip(axes_of_all, record.tasks, of_tasks, strict=True):
        axes.axvline(0, color=ink(), linewidth=1)
        for arm, shares in of_arms.items():
            y, colour = len(arms) - arms.index(arm), styles[arm]["color"]
            points = [100 * share for share in shares]
            axes.plot(points, [y] * len(points), "o", color=colour, alpha=0.45, markersize=4, markeredgewidth=0)
            mean, error = statistics.fmean(points), standard_error(points)
            axes.errorbar(mean, y, xerr=error, fmt="|", color=colour, markersize=9, capsize=2)
        if not any(map(any, of_arms.values())):
            axes.set_xlim(-1, 1)  # of its own it would be as wide as rounding
        axes.set_title(task.name, loc="left")
        axes.set_xlabel(f"points above {visible(record.baseline)}")
        axes.set_yticks(range(len(arms), 0, -1), labels=[visible(arm) for arm in arms])
        axes.set_ylim(0.3, len(arms) + 0.7)
        axes.grid(axis="x", alpha=0.25)
    first = axes_of_all[0]
    first.plot([], [], "o", color=ink(), alpha=0.45, label="one seed")
    first.errorbar([], [], xerr=[], fmt="|", color=ink(), label="mean ± standard error")
    legend_below(figure, first)
    return figure
