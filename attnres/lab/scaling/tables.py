"""The table of a scaling law, of a record or of points from anywhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attnres.analysis.powerlaw import Advantage, Fit, fit_power_laws
from attnres.lab.scaling.fit import diverged, final_points
from attnres.lab.scaling.record import ScalingRecord
from attnres.texttable import TextTable

EXTRAPOLATED = 1.5
"""Times an arm's largest compute: further out, its advantage is marked."""


def scaling_tables(record: ScalingRecord) -> list[TextTable]:
    return [scaling_table(*fit_power_laws(final_points(record)), "FLOPs", diverged(record))]


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


def _factor_with_interval(advantage: Advantage | None) -> str:
    if advantage is None:
        return ""
    return f"{advantage.factor:.2f}x [{advantage.interval[0]:.2f}, {advantage.interval[1]:.2f}]"
