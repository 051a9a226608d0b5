"""The figure of pruning."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from attnres.analysis.profile import sublayer_names
from attnres.lab.figures import BAND, GUIDE, panels
from attnres.lab.outcome import done_runs
from attnres.lab.prune.claims import THRESHOLD, by_arm
from attnres.lab.prune.record import PruneRecord
from attnres.report.axes import band, depth_axis, legend_below, line_styles


def costs(record: PruneRecord, narrow: bool = False) -> Figure:
    """The loss that every sublayer's removal adds: over depth, and sorted."""
    costs = {arm: np.array([run.added for run in done_runs(runs)]) for arm, runs in by_arm(record).items()}
    costs = {arm: added for arm, added in costs.items() if added.size}
    styles = line_styles(list(costs))
    figure, axes_of_all = panels(3, 3, (4.3, 3.8), narrow, sharey=True)
    attention, mlp, ordered = axes_of_all
    sublayers = max((added.shape[1] for added in costs.values()), default=0)
    for arm, added in costs.items():
        band(attention, arm, added[:, ::2], styles[arm])
        band(mlp, arm, added[:, 1::2], styles[arm])
        band(ordered, arm, np.sort(added)[:, ::-1], styles[arm], range(1, sublayers + 1))
    lowest = min((added.min() for added in costs.values()), default=0)
    titles = ("attention off", "MLP off", "all sublayers, sorted in each seed")
    for axes, title in zip(axes_of_all, titles, strict=True):
        axes.axhline(THRESHOLD, linewidth=4, **GUIDE, label=f"removable below {THRESHOLD}")
        # Linear through zero: without some sublayers the model is better.
        axes.set_yscale("symlog", linthresh=THRESHOLD / 10)
        axes.set_ylim(bottom=min(2 * lowest, 0) - THRESHOLD / 20)  # the margin would be decades below zero
        axes.yaxis.set_major_formatter("{x:g}")
        axes.set_title(title, loc="left", fontsize=9)
        axes.grid(alpha=0.25)
    for axes in (attention, mlp):
        depth_axis(axes.xaxis, sublayer_names(sublayers)[::2])
        axes.set_xlabel("layer")
    ordered.set_xlabel("rank, costliest first")
    attention.set_ylabel("loss added (nats per byte)")
    figure.suptitle(BAND, fontsize=9)
    legend_below(figure, attention, columns=3 if narrow else 7)
    return figure
