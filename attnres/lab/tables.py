"""Tables as texts: the terminal, the page and the documents show the same ones."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from attnres.analysis.comparison import SIGNIFICANCE, standard_error
from attnres.lab.claims import Statement
from attnres.lab.outcome import STATUSES, Outcome
from attnres.texttable import TextTable, number

DECIDED = f"Decided where p < {SIGNIFICANCE} (two-sided t-test over paired seeds, Holm-corrected within a claim)"


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
        rows.append(
            (
                f"  {statement.arm}",
                number(statement.value, "+.4f") + error,
                _p_text(statement.p_value),
                statement.reading,
                statement.detail,
            )
        )
    return [TextTable(title, ("claim, connection", "value", "p", "reading", ""), tuple(rows), note)]


def _p_text(p_value: float | None) -> str:
    return "<0.001" if p_value is not None and p_value < 0.001 else number(p_value, ".3f")


def mean_text(values: Sequence[float], form: str, unit: str = "") -> str:
    if not values:
        return ""
    error = standard_error(values)
    mean = unit + number(statistics.fmean(values), form)
    return mean if error is None else f"{mean} ± {error:{form.lstrip('+')}}"


def runs_text(runs: Sequence[Outcome]) -> str:
    """How many runs are done, and how many ended in any other way."""
    ended = [run.status for run in runs]
    others = [f"{ended.count(status)} {status}" for status in STATUSES if status != "done" and status in ended]
    return ", ".join([str(ended.count("done")), *others])
