"""Figures of a record of retrofits."""

from __future__ import annotations

import statistics

from matplotlib.figure import Figure

from attnres.analysis.comparison import standard_error
from attnres.lab.figures import panels
from attnres.lab.retrofit.claims import differences
from attnres.lab.retrofit.plan import percent
from attnres.lab.retrofit.record import RetrofitRecord
from attnres.lab.tuning import losses_of_rates
from attnres.report.axes import LineStyles, ink, legend_below, legend_label, line_styles, plain_log_ticks
from attnres.texttable import visible


def after_training_on(record: RetrofitRecord, narrow: bool = False) -> Figure:
    """Each arm's difference to its plain twin, seed by seed, after each length of further training."""
    arms = [arm.name for arm in record.arms[1:]]
    size = (3.2, 1.3 + 0.3 * len(arms))
    figure, axes_of_all = panels(len(record.fractions), len(record.fractions), size, narrow, sharey=True)
    styles = _styles(arms)
    for axes, fraction in zip(axes_of_all, record.fractions, strict=True):
        axes.axvline(0, color=ink(), linewidth=1)
        for arm, values in differences(record, fraction).items():
            y, colour = len(arms) - arms.index(arm), styles[arm]["color"]
            axes.plot(values, [y] * len(values), "o", color=colour, alpha=0.45, markersize=4, markeredgewidth=0)
            axes.errorbar(
                statistics.fmean(values), y, xerr=standard_error(values), fmt="|", color=colour, markersize=9, capsize=2
            )
        axes.set_title(f"{percent(fraction)} more", loc="left")
        axes.set_xlabel("loss minus the plain twin's\n(nats per byte)")
        axes.grid(axis="x", alpha=0.25)
        axes.set_yticks(range(len(arms), 0, -1), labels=[visible(arm) for arm in arms])
        axes.set_ylim(0.3, len(arms) + 0.7)
        axes.locator_params(axis="x", nbins=5)
    first = axes_of_all[0]
    first.plot([], [], "o", color=ink(), alpha=0.45, label="one seed")
    first.errorbar([], [], xerr=[], fmt="|", color=ink(), label="mean ± standard error")
    legend_below(figure, first)
    return figure


def rates(record: RetrofitRecord, narrow: bool = False) -> Figure | None:
    """Loss of each arm at each learning rate that it tried; None where there was nothing to choose."""
    if not record.tuning:
        return None
    figure, axes_of_all = panels(len(record.fractions), len(record.fractions), (3.2, 3.2), narrow)
    styles = _styles([arm.name for arm in record.arms])
    for axes, fraction in zip(axes_of_all, record.fractions, strict=True):
        for arm in record.arms:
            tried = losses_of_rates([one for one in record.tuning if (one.arm, one.fraction) == (arm.name, fraction)])
            means = [(factor, statistics.fmean(tried[factor])) for factor in sorted(tried)]
            axes.plot(
                *zip(*means, strict=True), marker="o", markersize=3.5, label=legend_label(arm.name), **styles[arm.name]
            )
        axes.set_xscale("log")
        plain_log_ticks(axes.xaxis)
        axes.set_title(f"{percent(fraction)} more", loc="left")
        axes.set_xlabel("learning rates over the plain model's")
        axes.grid(alpha=0.25)
    axes_of_all[0].set_ylabel("loss of the tuning seed\n(nats per byte)")
    legend_below(figure, axes_of_all[0], columns=3 if narrow else 4)
    return figure


def _styles(arms: list[str]) -> LineStyles:
    """Arms of one connection share its colour, whatever the rate behind the @."""
    written = [arm.replace("@", "," if ":" in arm else ":@") for arm in arms]
    styles = line_styles(written)
    return {arm: styles[name] for arm, name in zip(arms, written, strict=True)}
