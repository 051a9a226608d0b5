"""The tables of a record of dynamics."""

from __future__ import annotations

import statistics

import numpy as np

from attnres.lab.claims import NEGLIGIBLE
from attnres.lab.dynamics.claims import (
    Measure,
    early_sink,
    embedding_excess,
    gradient_unevenness,
    input_growth,
    log_range,
    output_growth,
    relative_entropy,
    source_name,
    statements,
    update_unevenness,
)
from attnres.lab.dynamics.record import DynamicsRecord
from attnres.lab.outcome import done_runs
from attnres.lab.tables import DECIDED, mean_text, runs_text, statement_tables
from attnres.texttable import TextTable


def dynamics_tables(record: DynamicsRecord) -> list[TextTable]:
    """Magnitudes, depth weights and ranks of every connection, then what they show."""
    return [_magnitudes(record), _weights(record), *_statements(record)]


def _magnitudes(record: DynamicsRecord) -> TextTable:
    measures: dict[str, tuple[Measure, str]] = {
        "loss": (lambda run: run.loss, ".4f"),
        "h: growth": (input_growth, "+.2f"),
        "h: max/min": (lambda run: log_range(run.moments[-1].input_rms[1:-1]), ".2f"),
        "y: growth": (output_growth, "+.2f"),
        "gradient: spread": (gradient_unevenness, ".3f"),
        "update: spread": (update_unevenness, ".3f"),
    }
    rows = []
    for arm in record.arms:
        runs = done_runs(arm.runs)
        cells = (mean_text([measure(run) for run in runs], form) for measure, form in measures.values())
        rows.append((arm.arm, *cells, runs_text(arm.runs)))
    note = (
        "mean ± standard error over seeds, at the last step. h: RMS of what sites 1 .. L-1 read; y: RMS of the "
        "sublayers' outputs; growth over the whole depth and max/min as natural logarithms. spread: standard deviation "
        "over mean, of the gradient at each output and of each sublayer's update."
    )
    return TextTable("Magnitudes over depth", ("connection", *measures, "runs"), tuple(rows), note)


def _weights(record: DynamicsRecord) -> TextTable:
    rows = []
    for arm in record.arms:
        runs = done_runs(arm.runs)
        sink = ""
        if runs:
            excess, source = early_sink(runs)
            sink = f"{source_name(source)}: x{np.exp(statistics.fmean(excess)):.2f}"
        ranks = [run.ranks for run in runs if run.ranks]
        largest = max((rank.semiseparable for rank in ranks), default=0)
        rows.append(
            (
                arm.arm,
                mean_text([relative_entropy(run.moments[0]) for run in runs], ".3f"),
                mean_text([relative_entropy(run.moments[-1]) for run in runs], ".3f"),
                mean_text([float(np.exp(embedding_excess(run))) for run in runs], ".2f", "x"),
                sink,
                mean_text([rank.effective for rank in ranks], ".2f"),
                mean_text([rank.semiseparable_mean for rank in ranks], ".2f"),
                f"{largest} of {arm.rank_bound}" if ranks else "",
            )
        )
    columns = (
        "connection",
        "entropy, untrained",
        "trained",
        "embedding",
        "early sublayer",
        "effective rank",
        "semiseparable rank",
        "largest",
    )
    note = (
        "entropy of |M| over sources, over that of equal shares. embedding and sublayer: mean share over that of equal "
        "shares. Ranks of M per token and channel at the last step, the largest against what the vectors that depth "
        "carries leave room for (docs/SPEC.md 2)."
    )
    return TextTable("Depth weights and ranks of M", columns, tuple(rows), note)


def _statements(record: DynamicsRecord) -> list[TextTable]:
    note = (
        f"{DECIDED} and the value is at least {NEGLIGIBLE} in size; refuted too where its 95% interval lies within "
        "that. Periods: by permuting sublayers of a kind. Values are natural logarithms, or differences of spread or "
        "relative entropy."
    )
    return statement_tables("What this shows", statements(record), note)
