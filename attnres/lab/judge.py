"""Claims that a record can decide: statistics over paired seeds, each with the rule that decides.

A statement is about a mean over seeds whose sign the claim predicts. With the p-value of a two-sided t-test over the
seeds, Holm-corrected over the connections that the same claim is asked of:

    shown         p < 0.05, the mean has the claimed sign and is at least 0.01 in size
    refuted       p < 0.05 with the other sign and that size; or the 95% interval of the mean lies within +-0.01
    not decided   otherwise, and always with fewer than two seeds

A claim may set another size below which a value is as good as none.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from attnres.analysis.comparison import SIGNIFICANCE, holm, paired_p_value, standard_error, t_quantile
from attnres.texttable import TextTable, number

NEGLIGIBLE = 0.01
SEEDS = "Dot: one seed. Bar and line: mean ± standard error."
"""What is said of `mean_and_error` below a picture."""
DECIDED = f"Decided where p < {SIGNIFICANCE} (two-sided t-test over paired seeds, Holm-corrected within a claim)"

T = TypeVar("T")


@dataclass(frozen=True)
class Statement:
    """One claim on one connection."""

    claim: str
    arm: str
    value: float
    """Mean over seeds."""
    error: float | None
    """Its standard error."""
    seeds: int
    p_value: float | None
    sign: int
    """The sign of `value` that the claim has."""
    detail: str = ""
    negligible: float = NEGLIGIBLE
    """Size below which a value is as good as none."""

    @property
    def reading(self) -> str:
        if self.p_value is None:
            return "not decided"
        if self.p_value < SIGNIFICANCE and abs(self.value) >= self.negligible:
            return "shown" if self.value * self.sign > 0 else "refuted"
        # A certain effect that is too small to matter refutes a claim too.
        if self.error is not None and abs(self.value) + t_quantile(self.seeds - 1) * self.error < self.negligible:
            return "refuted"
        return "not decided"


def paired(arms: Mapping[str, Mapping[int, T]], baseline: str, measure: Callable[[T], float]) -> dict[str, list[float]]:
    """Differences to the baseline over the seeds that both have."""
    base = arms.get(baseline, {})
    pairs = {
        arm: [measure(runs[seed]) - measure(base[seed]) for seed in runs if seed in base]
        for arm, runs in arms.items()
        if arm != baseline
    }
    return {arm: values for arm, values in pairs.items() if values}


def judged(
    claim: str,
    sign: int,
    values: Mapping[str, Sequence[float]],
    details: Mapping[str, str] | None = None,
    negligible: float = NEGLIGIBLE,
) -> list[Statement]:
    """One claim on every connection. values: of its seeds, or its differences to the baseline's."""
    p_values = holm([paired_p_value(numbers) for numbers in values.values()])
    return [
        Statement(
            claim=claim,
            arm=arm,
            value=statistics.fmean(numbers),
            error=standard_error(numbers),
            seeds=len(numbers),
            p_value=p_value,
            sign=sign,
            detail=(details or {}).get(arm, ""),
            negligible=negligible,
        )
        for (arm, numbers), p_value in zip(values.items(), p_values, strict=True)
    ]


def summary(found: Sequence[Statement], first: Callable[[str], bool] = lambda claim: True) -> str:
    """Under each claim that was decided for some connection: for which it is shown, for which refuted.

    first: the claims that are named alone where one of them was decided.
    """
    decided = [one for one in found if one.reading != "not decided"]
    decided = [one for one in decided if first(one.claim)] or decided
    parts = []
    for claim in dict.fromkeys(statement.claim for statement in decided):
        arms = {
            reading: [one.arm for one in decided if (one.claim, one.reading) == (claim, reading)]
            for reading in ("shown", "refuted")
        }
        said = [f"{reading} for {', '.join(names)}" for reading, names in arms.items() if names]
        parts.append(f"{claim} ({'; '.join(said)})")
    return f"Decided: {'; '.join(parts)}." if parts else "These runs decide nothing."


def statement_tables(title: str, found: Sequence[Statement], note: str) -> list[TextTable]:
    """One, under each claim one row per connection, or none where nothing was found."""
    if not found:
        return []
    rows, last = [], ""
    for statement in found:
        if statement.claim != last:
            last = statement.claim
            rows.append((last, "", "", "", ""))
        error = "" if statement.error is None else f" ± {statement.error:.4f}"
        p_value = statement.p_value
        p_text = "<0.001" if p_value is not None and p_value < 0.001 else number(p_value, ".3f")
        value = number(statement.value, "+.4f") + error
        rows.append((f"  {statement.arm}", value, p_text, statement.reading, statement.detail))
    return [TextTable(title, ("claim, connection", "value", "p", "reading", ""), tuple(rows), note)]


def mean_text(values: Sequence[float], form: str, unit: str = "") -> str:
    if not values:
        return ""
    error = standard_error(values)
    mean = unit + number(statistics.fmean(values), form)
    return mean if error is None else f"{mean} ± {error:{form.lstrip('+')}}"


def mean_and_error(values: Sequence[float]) -> dict[str, Any]:
    """The mean and its standard error as the fields of a row of a picture."""
    if not values:
        return {}
    mean, error = statistics.fmean(values), standard_error(values)
    return {"mean": mean, "interval": None if error is None else (mean - error, mean + error)}
