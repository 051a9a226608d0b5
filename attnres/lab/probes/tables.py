"""The tables of a record of probes."""

from __future__ import annotations

from attnres.lab.claims import NEGLIGIBLE
from attnres.lab.outcome import done_runs
from attnres.lab.probes.claims import by_arm, statements
from attnres.lab.probes.record import ProbesRecord
from attnres.lab.tables import DECIDED, mean_text, runs_text, statement_tables
from attnres.texttable import TextTable


def probes_tables(record: ProbesRecord) -> list[TextTable]:
    """The shares of right answers, and whether they differ."""
    rows = [("(commonest answer)", "", *(f"{task.commonest:.4f}" for task in record.tasks), "")]
    for arm, runs in by_arm(record).items():
        done = done_runs(runs)
        shares = (mean_text([run.right[index] for run in done], ".4f") for index in range(len(record.tasks)))
        rows.append((arm, mean_text([run.loss for run in done], ".4f"), *shares, runs_text(runs)))
    asked = "; ".join(f"{task.name}: {task.what}, {task.places} places" for task in record.tasks)
    note = f"Share of right answers, mean ± standard error over seeds, on {record.tokens} held-out tokens. {asked}."
    columns = ("connection", "loss", *(task.name for task in record.tasks), "runs")
    tables = [TextTable("What runs get right", columns, tuple(rows), note)]
    shown = (
        f"{DECIDED} and the difference is at least {NEGLIGIBLE:g}; refuted, too, where its 95% interval is within that."
        " A difference that is the same in every seed decides nothing."
    )
    return tables + statement_tables("What a lead is worth", statements(record), shown)
