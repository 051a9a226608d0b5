"""Pictures of dynamics: magnitudes over depth, depth weights over depth and training, depth matrices."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from attnres.analysis.profile import sublayer_names
from attnres.lab.depth import log_shares, relative_entropy
from attnres.lab.runs import Record, RunResult, done
from attnres.report.charts import Line, Lines, Matrix, Plot, band, over_depth

BAND = "Line: mean over seeds. Band: from the lowest to the highest seed."
Series = Callable[[RunResult], Sequence[float] | np.ndarray]
"""What reads numbers over depth or over training off one run of the record."""


def pictures(record: Record) -> list[Plot]:
    """All of them; none of a record without a run that came to its end."""
    arms = {arm: runs for arm in record.arms if (runs := done(record.of(arm)))}
    if not arms:
        return []
    first = next(iter(arms.values()))[0]  # all runs have as many numbers, at the same steps
    names = sublayer_names(len(first.measured["source_share"]) - 1)
    steps = [moment["step"] for moment in first.measured["moments"]]

    def bands(series: Series, x: Sequence[int] | None = None) -> list[Line]:
        return [band(arm, np.array([series(run) for run in runs], float), x) for arm, runs in arms.items()]

    def depth(title: str, kind: str, series: Series, log: bool = True) -> Lines:
        of = {"source": ("embedding", *names), "site": (*names, "readout"), "layer": names[::2]}[kind]
        return over_depth(title, kind, of, bands(series), log)

    def last(name: str, first: int = 0, every: int = 1) -> Series:
        return lambda run: run.measured["moments"][-1][name][first::every]

    def over_training(title: str, measure: Callable[[dict], float]) -> Lines:
        lines = bands(lambda run: [measure(moment) for moment in run.measured["moments"]], steps)
        return Lines(title=title, x_label="step", lines=lines)

    shares = depth("share of each source over an equal one", "source", lambda run: np.exp(log_shares(run)))
    magnitudes = [
        depth("h: RMS of what each site reads", "site", last("input_rms")),
        depth("y: RMS of attention outputs", "layer", last("output_rms", 1, 2)),
        depth("y: RMS of MLP outputs", "layer", last("output_rms", 2, 2)),
        depth("gradient RMS at each source", "source", last("gradient_rms")),
        shares,
        depth("update of attention (relative, per step)", "layer", last("update", 0, 2), log=False),
        depth("update of MLP (relative, per step)", "layer", last("update", 1, 2), log=False),
        depth("share of the embedding at each site", "site", lambda run: run.measured["embedding_share"]),
    ]
    entropy = depth("entropy of depth weights (nats), last step", "site", last("entropy"), log=False)
    limit = np.log(np.arange(1, len(names) + 2))
    equal = Line(name="equal shares: log(l + 1)", x=range(len(limit)), y=limit, as_="guide")
    entropy = over_depth(entropy.title, "site", (*names, "readout"), [equal, *entropy.lines])
    weights = [
        over_training("entropy of depth weights over log(l + 1)", relative_entropy),
        over_training("mean share of the embedding", lambda moment: moment["embedding_share"]),
        entropy,
    ]
    made = [
        Plot(
            name="dynamics-depth",
            alt="magnitudes over depth at the last step",
            charts=magnitudes,
            note=f"After {steps[-1]} steps. {BAND}",
        ),
        Plot(name="dynamics-weights", alt="depth weights of every connection", charts=weights, note=BAND),
    ]
    if matrices := [(arm, rows) for arm in record.arms if (rows := record.found.get(arm, {}).get("mean_matrix"))]:
        charts = [Matrix(title=arm, names=names, views=[_square(rows)]) for arm, rows in matrices]
        note = "M after training, mean over tokens, first seed."
        made.append(Plot(name="dynamics-matrices", alt="depth mixing matrices", charts=charts, note=note))
    return made


def _square(rows: Sequence[Sequence[float]]) -> np.ndarray:
    return np.array([[*row, *[0.0] * (len(rows) - len(row))] for row in rows])
