"""Figures of an ablation's record."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from attnres.lab.ablation.claims import comparisons, losses_at, scales
from attnres.lab.ablation.record import AblationRecord, TrialRun
from attnres.lab.figures import PAPER_MARK, panels
from attnres.lab.paper import ABLATION as PAPER
from attnres.lab.tuning import choose
from attnres.report.axes import INK, ink, legend_below, line_styles
from attnres.report.style import WEIGHT_COLOURS
from attnres.texttable import visible

NARROW_NAME = 28
"""Characters in a line of an arm's name on a phone: those of rules from files leave no room for points beside them."""


def differences(record: AblationRecord, narrow: bool = False) -> Figure:
    """Each arm's difference to the baseline, seed by seed, beside the paper's."""
    tables = list(comparisons(record))
    others = [
        row for _, rows in tables for row in sorted(rows[1:], key=lambda row: (row.difference is None, row.difference))
    ]
    order = list(dict.fromkeys(row.arm for row in others))  # of the first scale; what only another one has comes below
    longest = max((len(visible(arm)) for arm in order), default=0)  # rules of files have long names
    size = (5.2 + (1.8 + 0.08 * max(0, longest - 30)) / len(tables), 1.2 + 0.27 * len(order))
    figure, axes_of_all = panels(len(tables), len(tables), size, narrow, sharey=True)
    styles = {
        arm: line_styles([arm])[arm] for arm in order
    }  # arms of one connection may have one colour: all are named
    place = {arm: len(order) - index for index, arm in enumerate(order)}
    for axes, (std, rows) in zip(axes_of_all, tables, strict=True):
        losses = losses_at(record, std)
        base = losses.get(rows[0].arm, {})
        axes.axvline(0, color=ink(), linewidth=1)
        for row in rows[1:]:
            if row.difference is None:
                continue
            y = place[row.arm]
            pairs = [loss - base[seed] for seed, loss in losses[row.arm].items() if seed in base]
            colour = styles[row.arm]["color"]
            axes.plot(pairs, [y] * len(pairs), "o", color=colour, alpha=0.45, markersize=4, markeredgewidth=0)
            axes.errorbar(row.difference, y, xerr=row.difference_error, fmt="|", color=colour, markersize=9, capsize=2)
            if row.arm in PAPER and rows[0].arm in PAPER:
                axes.plot(PAPER[row.arm] - PAPER[rows[0].arm], y, markersize=5, **PAPER_MARK)
        axes.set_title(f"embedding std {std:g}", loc="left")
        axes.set_xlabel(f"validation loss minus that of {visible(rows[0].arm)}\n(nats per byte)")
        axes.grid(axis="x", alpha=0.25)
        if narrow:
            labels = ["\n".join(textwrap.wrap(visible(arm), NARROW_NAME)) for arm in place]
            axes.set_yticks(list(place.values()), labels=labels, fontsize=6 if longest > NARROW_NAME else None)
        else:
            axes.set_yticks(list(place.values()), labels=[visible(arm) for arm in place])
        axes.set_ylim(0.3, len(order) + 0.7)
    first = axes_of_all[0]
    first.plot([], [], "o", color=ink(), alpha=0.45, label="one seed")
    first.errorbar([], [], xerr=[], fmt="|", color=ink(), label="mean ± standard error")
    if any(rows[0].arm in PAPER and row.arm in PAPER for _, rows in tables for row in rows[1:]):
        first.plot([], [], **PAPER_MARK, label="paper (other data, size and unit: nats per token)")
    legend_below(figure, first, columns=1 if narrow else 3)
    return figure


def tuning(record: AblationRecord, narrow: bool = False) -> Figure | None:
    """Loss of each arm at each point of the learning-rate grid, over that of the rate chosen: was the grid wide enough?

    Differences are means over the tuning seeds that both rates ran on.

    None where there was nothing to choose.
    """
    stds = scales(record)
    arms = list(dict.fromkeys(cell.arm for cell in record.cells))
    factors = sorted({run.factor for cell in record.cells for run in cell.tuning})
    if not factors:
        return None
    names = 0.06 * max(len(visible(arm)) for arm in arms)  # inches
    size = (names / len(stds) + 0.6 + 1.0 * len(factors), 1.0 + 0.27 * len(arms))
    figure, axes_of_all = panels(len(stds), len(stds), size, narrow, sharey=True)
    image, clipped = None, False
    for axes, std in zip(axes_of_all, stds, strict=True):
        excess = np.full((len(arms), len(factors)), np.nan)
        for cell in record.cells:
            if cell.embedding_std != std:
                continue
            row, best = arms.index(cell.arm), choose(cell.tuning)
            for factor in {run.factor for run in cell.tuning}:
                column = factors.index(factor)
                value = excess[row, column] = _excess(cell.tuning, factor, best)
                text = "diverged" if np.isnan(value) else "best" if factor == best else f"{value:+.3f}"
                colour = "white" if value > 0.08 else ink() if np.isnan(value) else INK
                axes.text(column, row, text, ha="center", va="center", fontsize=6 if narrow else 7, color=colour)
        image = axes.imshow(excess, cmap=WEIGHT_COLOURS + "_r", vmin=0, vmax=0.15, aspect="auto")
        clipped |= bool(np.nanmax(excess, initial=0.0) > 0.15)
        axes.set_xticks(range(len(factors)), labels=[f"x{factor:g}" for factor in factors])
        axes.set_yticks(range(len(arms)), labels=[visible(arm) for arm in arms])
        axes.set_title(f"embedding std {std:g}", loc="left")
        axes.set_xlabel("learning rates over the defaults")
    if image is not None:
        label = "loss above the arm's\nbest (nats per byte)"
        place: dict[str, Any] = {"location": "bottom", "aspect": 40} if narrow else {"shrink": 0.8}
        figure.colorbar(image, ax=axes_of_all, label=label, extend="max" if clipped else "neither", **place)
    return figure


def _excess(tuning: Sequence[TrialRun], factor: float, best: float | None) -> float:
    """How far the rate's loss lies above that of the best, mean over the seeds of both; NaN where a run did not end."""
    losses: dict[tuple[float | None, int], float] = {
        (run.factor, run.seed): run.loss if run.done else np.nan for run in tuning
    }
    pairs = [(loss, losses.get((best, seed))) for (of, seed), loss in losses.items() if of == factor]
    return float(np.mean([loss - other for loss, other in pairs if other is not None] or np.nan))
