"""A comparison's result as tables, for the terminal and the page."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from attnres.analysis.comparison import SIGNIFICANCE, WIDEST, Comparison
from attnres.analysis.profile import SEEN, DepthProfile
from attnres.data import in_bits
from attnres.texttable import TextTable, number

NATS_PER_BYTE = "nats per byte"
METHOD = (
    "Difference: mean over paired seeds ± standard error. p: two-sided paired t-test, Holm-corrected over the arms; "
    f"decided where p < {SIGNIFICANCE:g}. Step time and peak memory: median over paired seeds [lowest, highest]; "
    f"withheld of a single seed, of runs of a few steps, and where these are more than {WIDEST:g} times apart, as by "
    "other work on the machine."
)


def result_tables(rows: Sequence[Comparison], unit: str) -> list[TextTable]:
    """The result, one arm per row, and the differences seed by seed. rows: the baseline first; none gives no table."""
    if not any(row.validation_loss is not None for row in rows):
        return []
    timed, in_both = any(row.step_time_range for row in rows), unit == NATS_PER_BYTE
    seeds = sorted({seed for row in rows for seed in row.differences})
    results = TextTable(
        "Result",
        (
            "connection",
            f"difference to {rows[0].arm}",  # first, because a narrow page shows the first columns
            "p",
            f"validation {unit}",
            *(("bits per byte",) if in_both else ()),
            *(("step time",) if timed else ()),
            "peak memory",
            "seeds",
        ),
        tuple(
            (row.arm, *_difference(row), *_losses(row, in_both), *((_step_time(row),) if timed else ()), *_costs(row))
            for row in rows
        ),
        METHOD,
    )
    if len(seeds) < 2:
        return [results]
    by_seed = TextTable(
        "Seed by seed",
        (f"difference to {rows[0].arm}", *(f"seed {seed}" for seed in seeds)),
        tuple((row.arm, *(number(row.differences.get(seed), "+.4f") for seed in seeds)) for row in rows[1:]),
    )
    return [results, by_seed]


def _losses(row: Comparison, in_both: bool) -> tuple[str, ...]:
    bits = None if row.validation_loss is None else in_bits(row.validation_loss)
    return number(row.validation_loss, ".4f"), *((number(bits, ".4f"),) if in_both else ())


def _difference(row: Comparison) -> tuple[str, str]:
    difference = number(row.difference, "+.4f")
    if row.difference_error is not None:
        difference += f" ± {row.difference_error:.4f}"
    p_value = "" if row.p_value is None else "< 0.001" if row.p_value < 0.001 else f"{row.p_value:.3f}"
    return difference, p_value


def _step_time(row: Comparison) -> str:
    return _ratio(row, row.step_time_ratio, row.step_time_range)


def _costs(row: Comparison) -> tuple[str, str]:
    return _ratio(row, row.peak_memory_ratio, row.peak_memory_range), str(row.seeds)


def _ratio(row: Comparison, ratio: float | None, spread: tuple[float, float] | None) -> str:
    if ratio is None:
        return "withheld" if row.seeds else ""
    return number(ratio, ".2f", "x") + ("" if spread is None else " [{:.2f}, {:.2f}]".format(*spread))


def sink_table(profiles: Sequence[tuple[str, DepthProfile]]) -> TextTable:
    """The strongest depth sinks of each arm."""
    rows = []
    for arm, profile in profiles:
        sinks = [f"{name} {excess:.1f}x ({share:.0%})" for name, share, excess in profile.sinks(3)]
        nothing = "none" if np.isfinite(profile.source_share).all() else "weights are not finite"
        rows.append((arm, *(sinks or [nothing]), *[""] * (3 - max(1, len(sinks)))))
    note = (
        "Share of the weight of the sites that can see the source, over an equal share, and the share itself; of the "
        f"sources that at least {SEEN:.0%} of the sites can see: the few sites behind the last ones read them anyhow."
    )
    return TextTable("Strongest depth sinks", ("connection", "strongest", "second", "third"), tuple(rows), note)
