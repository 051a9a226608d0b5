"""A comparison's result as tables, for the terminal and the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from attnres.analysis.comparison import SIGNIFICANCE, WIDEST, Comparison
from attnres.analysis.profile import SEEN, DepthProfile
from attnres.data import in_bits
from attnres.texttable import TextTable, number

METHOD = (
    "Difference: mean over paired seeds ± standard error. p: two-sided paired t-test, Holm-corrected over the arms; "
    f"decided where p < {SIGNIFICANCE:g}. Step time and peak memory: median over paired seeds [lowest, highest]; "
    f"withheld of a single seed, and where these are more than {WIDEST:g} times apart, as by other work on the machine."
)


def result_tables(rows: Sequence[Comparison], of: str = "") -> list[TextTable]:
    """The result, one arm per row, and the differences seed by seed; nothing where no run is compared.

    rows: the baseline first, losses in nats per byte. of: what the runs are, for the note.
    """
    if not any(row.validation_loss is not None for row in rows):
        return []
    seeds = sorted({seed for row in rows for seed in row.differences})
    results = TextTable(
        "Result",
        (
            "connection",
            f"difference to {rows[0].arm}",  # first, because a narrow page shows the first columns
            "p",
            "validation nats per byte",
            "bits per byte",
            "step time",
            "peak memory",
            "seeds",
        ),
        tuple((row.arm, *_difference(row), *_losses(row), *_costs(row)) for row in rows),
        f"{of} {METHOD}".strip(),
    )
    if len(seeds) < 2:
        return [results]
    by_seed = TextTable(
        "Seed by seed",
        (f"difference to {rows[0].arm}", *(f"seed {seed}" for seed in seeds)),
        tuple((row.arm, *(number(row.differences.get(seed), "+.4f") for seed in seeds)) for row in rows[1:]),
    )
    return [results, by_seed]


def _losses(row: Comparison) -> tuple[str, str]:
    bits = None if row.validation_loss is None else in_bits(row.validation_loss)
    return number(row.validation_loss, ".4f"), number(bits, ".4f")


def _difference(row: Comparison) -> tuple[str, str]:
    difference = number(row.difference, "+.4f")
    if row.difference_error is not None:
        difference += f" ± {row.difference_error:.4f}"
    p_value = "" if row.p_value is None else "< 0.001" if row.p_value < 0.001 else f"{row.p_value:.3f}"
    return difference, p_value


def _costs(row: Comparison) -> tuple[str, str, str]:
    times = _ratio(row, row.step_time_ratio, row.step_time_range)
    return times, _ratio(row, row.peak_memory_ratio, row.peak_memory_range), str(row.seeds)


def _ratio(row: Comparison, ratio: float | None, spread: tuple[float, float] | None) -> str:
    if ratio is None:
        return "withheld" if row.seeds else ""
    return number(ratio, ".2f", "x") + ("" if spread is None else " [{:.2f}, {:.2f}]".format(*spread))


def sink_table(profiles: Mapping[str, DepthProfile]) -> TextTable:
    """The strongest depth sinks of each arm."""
    rows = []
    for arm, profile in profiles.items():
        sinks = [f"{name} {excess:.1f}x ({share:.0%})" for name, share, excess in profile.sinks(3)]
        nothing = "none" if np.isfinite(profile.source_share).all() else "weights are not finite"
        rows.append((arm, *(sinks or [nothing]), *[""] * (3 - max(1, len(sinks)))))
    note = (
        "Share of the weight of the sites that can see the source, over an equal share, and the share itself; of the "
        f"sources that at least {SEEN:.0%} of the sites can see: the few sites behind the last ones read them anyhow."
    )
    return TextTable("Strongest depth sinks", ("connection", "strongest", "second", "third"), tuple(rows), note)
