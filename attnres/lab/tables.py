"""The tables of the experiments, as texts: the terminal, the page and the documents show the same ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from attnres.analysis.powerlaw import Advantage, Fit
from attnres.lab.paper import ABLATION as PAPER
from attnres.lab.record import Record
from attnres.lab.verdicts import comparisons, rank_correlation, verdicts

EXTRAPOLATED = 1.5
"""Times an arm's largest compute: further out, its advantage is marked."""


@dataclass(frozen=True)
class TextTable:
    """Names stand left, numbers right."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


def ablation_tables(record: Record) -> list[TextTable]:
    """One for each embedding scale, best arm first, the baseline on top; then the paper's claims, if any are tested."""
    tables = []
    for std, rows in comparisons(record):
        cells = {cell["arm"]: cell for cell in record["cells"] if cell["embedding_std"] == std}
        baseline, *others = rows
        others.sort(key=lambda row: float("inf") if row.difference is None else row.difference)
        paper = PAPER.get(baseline.arm)
        shown = tuple(
            (
                row.arm,
                number(row.validation_loss, ".4f"),
                number(row.difference, "+.4f"),
                number(row.difference_error, ".4f"),
                _factor(cells[row.arm]),
                _runs(cells[row.arm]),
                "" if row is baseline or paper is None or row.arm not in PAPER else f"{PAPER[row.arm] - paper:+.3f}",
            )
            for row in (baseline, *others)
        )
        note = "lr: multiple of the default rates, chosen on seeds of its own; * at the edge of the grid."
        if tau := rank_correlation(record, std):
            note += f" Order against the paper's: Kendall's tau {tau[0]:+.2f}, p = {tau[1]:.3f}, {tau[2]} arms."
        columns = ("connection", "loss", f"difference to {baseline.arm}", "standard error", "lr", "runs", "paper")
        tables.append(TextTable(f"embedding std {std:g}, nats per byte", columns, shown, note))
    return tables + _verdict_tables(record)


def _verdict_tables(record: Record) -> list[TextTable]:
    rows = tuple(
        (
            verdict.claim,
            f"{verdict.better} - {verdict.other}",
            f"{verdict.embedding_std:g}",
            number(verdict.difference, "+.4f"),
            number(verdict.error, ".4f"),
            number(verdict.p_value, ".3f"),
            verdict.reading,
        )
        for verdict in verdicts(record)
    )
    columns = ("the paper finds", "difference", "std", "ours", "standard error", "p", "reading")
    note = "p: two-sided paired t-test over seeds, Holm-corrected within a scale; decided where p < 0.05."
    return [TextTable("The paper's claims on these runs", columns, rows, note)] if rows else []


def scaling_table(
    fits: Sequence[Fit], advantages: Sequence[Advantage], unit: str, diverged: Mapping[str, int] | None = None
) -> TextTable:
    """diverged: how many runs of an arm the fit is without; an arm of which nothing else is left has no fit."""
    diverged = {arm: count for arm, count in (diverged or {}).items() if count}
    lost = {arm: f", {count} diverged" for arm, count in diverged.items()}
    factors = {advantage.arm: advantage for advantage in advantages}
    rows = tuple(
        (
            fit.arm,
            f"{fit.points}{lost.get(fit.arm, '')}",
            f"{fit.scale:.4g} [{fit.scale_interval[0]:.4g}, {fit.scale_interval[1]:.4g}]",
            f"{fit.exponent:.4f} [{fit.exponent_interval[0]:.4f}, {fit.exponent_interval[1]:.4f}]",
            _factor_with_interval(factors.get(fit.arm)),
        )
        for fit in fits
    )
    fitted = {fit.arm for fit in fits}
    rows += tuple((arm, f"0{text}", "", "", "") for arm, text in lost.items() if arm not in fitted)
    at = f" Compute advantage: at C = {advantages[0].compute:.3g} {unit}." if advantages else ""
    for fit in fits if advantages else ():
        if not fit.computes[0] <= advantages[0].compute <= EXTRAPOLATED * fit.computes[1]:
            low, high = fit.computes
            at += f" Extrapolated for {fit.arm}, measured from {low:.3g} to {high:.3g}."
    columns = ("connection", "points", "A", "a", f"compute advantage over {fits[0].arm}")
    return TextTable("L = A C^-a", columns, rows, f"C in {unit}; 95% bootstrap intervals.{at}")


def number(value: float | None, form: str, unit: str = "") -> str:
    """Nothing for None."""
    return "" if value is None else f"{value:{form}}{unit}"


def _factor_with_interval(advantage: Advantage | None) -> str:
    if advantage is None:
        return ""
    return f"{advantage.factor:.2f}x [{advantage.interval[0]:.2f}, {advantage.interval[1]:.2f}]"


def _factor(cell: Mapping) -> str:
    factors = {run["factor"] for run in cell["tuning"]}
    if cell["factor"] is None:
        return "none"
    edge = len(factors) > 1 and cell["factor"] in (min(factors), max(factors))
    return f"x{cell['factor']:g}" + "*" * edge


def _runs(cell: Mapping) -> str:
    done = sum(run["status"] == "done" for run in cell["runs"])
    diverged = sum(run["status"] == "diverged" for run in cell["runs"])
    return f"{done}" + (f", {diverged} diverged" if diverged else "")
