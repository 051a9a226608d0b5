"""The tables of an ablation's record."""

from __future__ import annotations

from collections.abc import Sequence

from attnres.lab.ablation.claims import SUCCESSORS, Verdict, comparisons, rank_correlation, verdicts
from attnres.lab.ablation.record import AblationRecord, CellRecord
from attnres.lab.paper import ABLATION as PAPER
from attnres.lab.paper import CLAIMS
from attnres.lab.tables import runs_text
from attnres.texttable import TextTable, number


def ablation_tables(record: AblationRecord) -> list[TextTable]:
    """One for each embedding scale, best arm first, the baseline on top; then the claims, as far as any are tested."""
    tables = []
    own_steps = record.sweep.equal != "steps"
    for std, rows in comparisons(record):
        cells = {cell.arm: cell for cell in record.cells if cell.embedding_std == std}
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
                *([_steps(cells[row.arm])] if own_steps else []),
                runs_text(cells[row.arm].runs),
                "" if row is baseline or paper is None or row.arm not in PAPER else f"{PAPER[row.arm] - paper:+.3f}",
            )
            for row in (baseline, *others)
        )
        note = "lr: multiple of the default rates, chosen on seeds of its own; * at the edge of the grid."
        if own_steps:
            note += f" Every arm spends the {record.sweep.equal} of the first one."
        if tau := rank_correlation(record, std):
            note += f" Order against the paper's: Kendall's tau {tau[0]:+.2f}, p = {tau[1]:.3f}, {tau[2]} arms."
        columns = ("connection", "loss", f"difference to {baseline.arm}", "standard error", "lr")
        columns = (*columns, *(["steps"] if own_steps else []), "runs", "paper")
        tables.append(TextTable(f"embedding std {std:g}, nats per byte", columns, shown, note))
    tables += _verdict_tables("The paper's claims on these runs", "the paper finds", verdicts(record, CLAIMS))
    return tables + _verdict_tables("What Block's successors add", "claim", verdicts(record, SUCCESSORS))


def _verdict_tables(title: str, first_column: str, found: Sequence[Verdict]) -> list[TextTable]:
    rows = tuple(
        (
            verdict.claim,
            verdict.compared,
            f"{verdict.embedding_std:g}",
            number(verdict.difference, "+.4f"),
            number(verdict.error, ".4f"),
            number(verdict.p_value, ".3f"),
            verdict.reading,
        )
        for verdict in found
    )
    columns = (first_column, "difference", "std", "ours", "standard error", "p", "reading")
    note = "p: two-sided paired t-test over seeds, Holm-corrected within a scale; decided where p < 0.05."
    return [TextTable(title, columns, rows, note)] if rows else []


def _steps(cell: CellRecord) -> str:
    return str(max((run.curve[-1][0] for run in cell.runs if run.curve), default=""))


def _factor(cell: CellRecord) -> str:
    factors = {run.factor for run in cell.tuning}
    if cell.factor is None:
        return "none"
    edge = len(factors) > 1 and cell.factor in (min(factors), max(factors))
    return f"x{cell.factor:g}" + "*" * edge
