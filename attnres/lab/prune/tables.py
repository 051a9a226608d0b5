"""The tables of a record of pruning."""

from __future__ import annotations

from attnres.lab.claims import NEGLIGIBLE
from attnres.lab.outcome import done_runs
from attnres.lab.prune.claims import MEASURES, NEGLIGIBLE_LOSS, THRESHOLD, by_arm, prune_statements
from attnres.lab.prune.record import PruneRecord
from attnres.lab.tables import DECIDED, mean_text, runs_text, statement_tables
from attnres.texttable import TextTable


def prune_tables(record: PruneRecord) -> list[TextTable]:
    rows = []
    for arm, runs in by_arm(record).items():
        done = done_runs(runs)
        cells = (mean_text([measure(run) for run in done], ".4f") for measure in MEASURES.values())
        rows.append((arm, mean_text([run.loss for run in done], ".4f"), *cells, runs_text(runs)))
    note = (
        f"Nats per byte on {record.tokens} validation tokens, mean ± standard error over seeds. removable: share of "
        f"sublayers that cost less than {THRESHOLD}. Gini: 0 if all cost the same, near 1 if one costs everything."
    )
    columns = ("connection", "loss", *(f"added, {name}" if name in ("mean", "median") else name for name in MEASURES))
    tables = [TextTable("Loss added by switching one sublayer off", (*columns, "runs"), tuple(rows), note)]
    shown = (
        f"{DECIDED} and the difference is at least {NEGLIGIBLE_LOSS} nats per byte, or {NEGLIGIBLE} in share and "
        "Gini; refuted too where its 95% interval lies within that. A share that differs by as much in every seed "
        "decides nothing."
    )
    return tables + statement_tables("Are sublayers less redundant?", prune_statements(record), shown)
