"""What a record of dynamics shows, claim by claim (lab/judge.py has the rule that decides), its tables and figure.

h is what a sublayer reads, y what it returns. Magnitudes are compared by natural logarithms, so 0.01 is one percent.
Runs that diverged are left out.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from attnres.analysis.profile import sublayer_names
from attnres.lab.judge import DECIDED, NEGLIGIBLE, Statement, judged, mean_text, paired, statement_tables, summary
from attnres.lab.runs import Record, RunResult, done, runs_text
from attnres.report.charts import Lines, Plot, band, over_depth
from attnres.report.write import ALONG, BANDS, along_depth
from attnres.texttable import TextTable

LEAST_SHARE = 1e-12
"""Less has no logarithm to compare."""
ROUNDED_OFF = 5e-4
"""What records of four digits, as they once were, round off at most, over the number itself."""

Measure = Callable[[RunResult], float]
"""What reads a number off one run of the record."""


def log_growth(series: Sequence[float]) -> float:
    """Growth over the whole series: the least-squares slope of its logarithm, times its length less one."""
    logs = np.log(series)
    return float(np.polyfit(np.arange(len(logs)), logs, 1)[0] * (len(logs) - 1))


def log_range(series: Sequence[float]) -> float:
    """Return ln(max / min)."""
    return math.log(max(series) / min(series))


def unevenness(series: Sequence[float]) -> float:
    """The coefficient of variation: standard deviation over mean."""
    return float(np.std(series) / np.mean(series))


def last(run: RunResult) -> Mapping[str, Any]:
    """What was measured of the run at its last step."""
    return run.measured["moments"][-1]


def input_growth(run: RunResult) -> float:
    """Measure how the RMS of h grows over sites 1 .. L-1: the first reads the embedding alone."""
    return log_growth(last(run)["input_rms"][1:-1])


def output_growth(run: RunResult) -> float:
    """Measure how the RMS of the L sublayers' outputs grows."""
    return log_growth(last(run)["output_rms"][1:])


def gradient_unevenness(run: RunResult) -> float:
    """Over the L sublayers' outputs; the embedding stands apart."""
    return unevenness(last(run)["gradient_rms"][1:])


def update_unevenness(run: RunResult) -> float:
    return unevenness(last(run)["update"])


def uniform_shares(sources: int) -> np.ndarray:
    """[source]: the share that a source has, averaged over the sites that see it, where each divides equally."""
    return np.array([np.mean([1 / (site + 1) for site in range(source, sources)]) for source in range(sources)])


def log_shares(run: RunResult) -> np.ndarray:
    """[source]: ln of the mean share over the share under equal division, 0 where they agree in four digits."""
    shares = np.asarray(run.measured["source_share"], dtype=np.float64)
    uniform = uniform_shares(len(shares))
    # What four digits round off is the same in every seed, and a test without spread would find it significant.
    equal = np.isclose(shares, uniform, rtol=ROUNDED_OFF, atol=0)
    return np.where(equal, 0.0, np.log(np.maximum(shares, LEAST_SHARE) / uniform))


def embedding_excess(run: RunResult) -> float:
    return float(log_shares(run)[0])


def embedding_excess_at_start(run: RunResult) -> float:
    sources = len(run.measured["source_share"])
    return math.log(max(run.measured["moments"][0]["embedding_share"], LEAST_SHARE) / uniform_shares(sources)[0])


def relative_entropy(moment: Mapping[str, Any]) -> float:
    """Entropy of the depth weights over log(l + 1), mean over sites 1 .. L: 1 where all sources share equally."""
    entropy = np.asarray(moment["entropy"][1:])
    return float(np.mean(entropy / np.log(np.arange(2, len(entropy) + 2))))


def sharpening(run: RunResult) -> float:
    """The change of `relative_entropy` from before the first step to the last."""
    return relative_entropy(last(run)) - relative_entropy(run.measured["moments"][0])


def statements(record: Record) -> list[Statement]:
    """Every claim on every connection that has runs."""
    arms = {arm: {run.seed: run for run in done(record.of(arm))} for arm in record.arms}
    arms = {name: runs for name, runs in arms.items() if runs}
    baseline = record.arms[0]

    def each(measure: Measure) -> dict[str, list[float]]:
        return {arm: [measure(run) for run in runs.values()] for arm, runs in arms.items()}

    untrained = {arm: statistics.fmean(of) for arm, of in each(embedding_excess_at_start).items()}
    details = {arm: f"{excess:+z.3f} untrained" for arm, excess in untrained.items()}
    return [
        *judged("h grows with depth", 1, each(input_growth)),
        *judged("y grows with depth", 1, each(output_growth)),
        *judged(f"h grows less than in {baseline}", -1, paired(arms, baseline, input_growth)),
        *judged(f"y grows less than in {baseline}", -1, paired(arms, baseline, output_growth)),
        *judged(f"gradients more even than in {baseline}", -1, paired(arms, baseline, gradient_unevenness)),
        *judged(f"updates more even than in {baseline}", -1, paired(arms, baseline, update_unevenness)),
        *judged("depth weights sharpen in training", -1, each(sharpening)),
        *judged("the embedding is a sink", 1, each(embedding_excess), details),
    ]


def finding(record: Record) -> str:
    """What was decided of what sublayers read; of all else where nothing was."""
    return summary(statements(record), first=lambda claim: claim.startswith("h "))


def dynamics_tables(record: Record) -> list[TextTable]:
    """Magnitudes and depth weights of every connection, then what they show."""
    return [_magnitudes(record), _weights(record), *_statements(record)]


def _magnitudes(record: Record) -> TextTable:
    measures: dict[str, tuple[Measure, str]] = {
        "loss": (lambda run: run.loss, ".4f"),
        "h: growth": (input_growth, "+.2f"),
        "h: max/min": (lambda run: log_range(last(run)["input_rms"][1:-1]), ".2f"),
        "y: growth": (output_growth, "+.2f"),
        "gradient: spread": (gradient_unevenness, ".3f"),
        "update: spread": (update_unevenness, ".3f"),
    }
    rows = []
    for arm in record.arms:
        runs = done(record.of(arm))
        cells = (mean_text([measure(run) for run in runs], form) for measure, form in measures.values())
        rows.append((arm, *cells, runs_text(record.of(arm))))
    note = (
        "mean ± standard error over seeds, at the last step. h: RMS of what sites 1 .. L-1 read; y: RMS of the "
        "sublayers' outputs; growth over the whole depth and max/min as natural logarithms. spread: standard deviation "
        "over mean, of the gradient at each output and of each sublayer's update."
    )
    return TextTable("Magnitudes over depth", ("connection", *measures, "runs"), tuple(rows), note)


def _weights(record: Record) -> TextTable:
    rows = []
    for arm in record.arms:
        runs = done(record.of(arm))
        rows.append(
            (
                arm,
                mean_text([relative_entropy(run.measured["moments"][0]) for run in runs], ".3f"),
                mean_text([relative_entropy(last(run)) for run in runs], ".3f"),
                mean_text([float(np.exp(embedding_excess(run))) for run in runs], ".2f", "x"),
            )
        )
    columns = ("connection", "entropy, untrained", "trained", "embedding")
    note = (
        "entropy of |M| over sources, over that of equal shares. embedding: its mean share over that of equal shares."
    )
    return TextTable("Depth weights", columns, tuple(rows), note)


def _statements(record: Record) -> list[TextTable]:
    note = (
        f"{DECIDED} and the value is at least {NEGLIGIBLE} in size; refuted too where its 95% interval lies within "
        "that. Values are natural logarithms, or differences of spread or relative entropy."
    )
    return statement_tables("What this shows", statements(record), note)


def pictures(record: Record) -> list[Plot]:
    """What depth does at the last step and over training; none of a record without a run that came to its end."""
    arms = {arm: runs for arm in record.arms if (runs := done(record.of(arm)))}
    if not arms:
        return []
    first = next(iter(arms.values()))[0]  # all runs have as many numbers, at the same steps
    names = sublayer_names(len(first.measured["source_share"]) - 1)
    steps = [moment["step"] for moment in first.measured["moments"]]

    def over_training(title: str, measure: Callable[[Mapping[str, Any]], float]) -> Lines:
        numbers = {arm: [list(map(measure, run.measured["moments"])) for run in runs] for arm, runs in arms.items()}
        lines = [band(arm, np.array(of), steps) for arm, of in numbers.items()]
        return Lines(title=title, x_label="step", lines=lines)

    ends = {arm: [{**last(run), **run.measured} for run in runs] for arm, runs in arms.items()}
    updates = [band(arm, np.array([end["update"] for end in of])) for arm, of in ends.items()]
    charts = [
        *along_depth(ends, names),
        over_depth("update of each sublayer (relative, per step)", "sublayer", names, updates),
        over_training("entropy of depth weights over log(l + 1)", relative_entropy),
        over_training("mean share of the embedding", lambda moment: moment["embedding_share"]),
    ]
    alt = "magnitudes and shares over depth at the last step, depth weights over training"
    note = f"After {steps[-1]} steps. {BANDS}"
    return [Plot(name="dynamics-depth", alt=alt, charts=charts, note=note, how=ALONG, columns=3)]
