"""What a record of dynamics shows, claim by claim (lab/judge.py has the rule that decides), and its tables.

h is what a sublayer reads, y what it returns. Magnitudes are compared by natural logarithms, so 0.01 is one percent.
Runs that diverged are left out.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from attnres.analysis.comparison import holm
from attnres.lab.judge import DECIDED, NEGLIGIBLE, Statement, judged, mean_text, paired, statement_tables, summary
from attnres.lab.runs import Record, Run, done, runs_text
from attnres.model import sublayer_name
from attnres.texttable import TextTable

PERMUTATIONS = 2000
LEAST_SHARE = 1e-12
"""Less has no logarithm to compare."""
ROUNDED_OFF = 5e-4
"""What records of four digits, as they once were, round off at most, over the number itself."""

Measure = Callable[[Run], float]
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


def input_growth(run: Run) -> float:
    """Measure how the RMS of h grows over sites 1 .. L-1: the first reads the embedding alone."""
    return log_growth(run.measured["moments"][-1]["input_rms"][1:-1])


def output_growth(run: Run) -> float:
    """Measure how the RMS of the L sublayers' outputs grows."""
    return log_growth(run.measured["moments"][-1]["output_rms"][1:])


def gradient_unevenness(run: Run) -> float:
    """Over the L sublayers' outputs; the embedding stands apart."""
    return unevenness(run.measured["moments"][-1]["gradient_rms"][1:])


def update_unevenness(run: Run) -> float:
    return unevenness(run.measured["moments"][-1]["update"])


def uniform_shares(sources: int) -> np.ndarray:
    """[source]: the share that a source has, averaged over the sites that see it, where each divides equally."""
    return np.array([np.mean([1 / (site + 1) for site in range(source, sources)]) for source in range(sources)])


def log_shares(run: Run) -> np.ndarray:
    """[source]: ln of the mean share over the share under equal division, 0 where they agree in four digits."""
    shares = np.asarray(run.measured["source_share"], dtype=np.float64)
    uniform = uniform_shares(len(shares))
    # What four digits round off is the same in every seed, and a test without spread would find it significant.
    equal = np.isclose(shares, uniform, rtol=ROUNDED_OFF, atol=0)
    return np.where(equal, 0.0, np.log(np.maximum(shares, LEAST_SHARE) / uniform))


def embedding_excess(run: Run) -> float:
    return float(log_shares(run)[0])


def embedding_excess_at_start(run: Run) -> float:
    sources = len(run.measured["source_share"])
    return math.log(max(run.measured["moments"][0]["embedding_share"], LEAST_SHARE) / uniform_shares(sources)[0])


def relative_entropy(moment: Mapping[str, Any]) -> float:
    """Entropy of the depth weights over log(l + 1), mean over sites 1 .. L: 1 where all sources share equally."""
    entropy = np.asarray(moment["entropy"][1:])
    return float(np.mean(entropy / np.log(np.arange(2, len(entropy) + 2))))


def sharpening(run: Run) -> float:
    """The change of `relative_entropy` from before the first step to the last."""
    return relative_entropy(run.measured["moments"][-1]) - relative_entropy(run.measured["moments"][0])


def early_sink(runs: Sequence[Run]) -> tuple[list[float], int]:
    """How far one early sublayer stands out: ln of its excess share in each run, and the source that most runs favour.

    Of the sources that at least half of the sites see, the embedding left out. The largest of many is always large, so
    each run is asked for the source that the *other* runs have largest: without a sink that means nothing here.
    """
    shares = np.stack([log_shares(run) for run in runs])
    early = slice(1, (shares.shape[1] + 1) // 2)
    favoured = int(np.argmax(shares.mean(0)[early])) + 1
    if len(runs) < 2:
        return [float(shares[0, favoured])], favoured
    held_out = []
    for index in range(len(runs)):
        others = np.delete(shares, index, 0).mean(0)[early]
        held_out.append(float(shares[index, int(np.argmax(others)) + 1]))
    return held_out, favoured


@dataclass(frozen=True)
class Periodicity:
    """How much of a series over depth follows the place within a block."""

    amplitude: float
    """ln of the largest over the smallest place, after trend and kind of sublayer."""
    share: float
    """The share of the variance that trend and kind leave."""
    p_value: float
    """Share of permutations of the sublayers (attention with attention, MLP with MLP) that reach this share."""


def periodicity(series: np.ndarray, period: int, seed: int = 0) -> Periodicity | None:
    """Measure the periodicity of the logarithm of series [sublayer], mean over the rows if [run, sublayer].

    Every second sublayer is an MLP, which alone would make any series periodic: so a line in depth and the mean of each
    kind are taken off first. The first block, which begins with the embedding alone, is left out. Runs are averaged
    before they are permuted: they repeat one pattern and are no independent evidence of a period. None where a
    block has no places to tell apart (period 1 and 2) or there are fewer than three blocks.
    """
    logs = np.log(np.atleast_2d(series)).mean(0)[period:]
    if period < 3 or len(logs) < 2 * period:
        return None
    index = np.arange(period, period + len(logs))
    kind, place = index % 2, index % period
    design = np.stack([index, kind == 0, kind == 1], 1).astype(np.float64)
    rest = logs - design @ np.linalg.lstsq(design, logs, rcond=None)[0]
    total = rest @ rest
    if total < 1e-12 * len(rest):
        return Periodicity(0.0, 0.0, 1.0)

    members = (place == np.arange(period)[:, None]).astype(np.float64)
    count = members.sum(1)

    def place_means(values: np.ndarray) -> np.ndarray:
        """Average over the blocks: [..., sublayer] -> [..., place]."""
        return values @ members.T / count

    def explained(values: np.ndarray) -> np.ndarray:
        """Return the share of the variance of [..., sublayer] that lies between the places."""
        return (place_means(values) ** 2 * count).sum(-1) / total

    generator = np.random.default_rng(seed)
    shuffled = np.tile(rest, (PERMUTATIONS, 1))
    for k in (0, 1):
        columns = np.flatnonzero(kind == k)
        shuffled[:, columns] = generator.permuted(shuffled[:, columns], axis=1)
    observed = float(explained(rest))
    reached = np.sum(explained(shuffled) >= observed - 1e-12)
    return Periodicity(float(np.ptp(place_means(rest))), observed, float((1 + reached) / (1 + PERMUTATIONS)))


def statements(record: Record) -> list[Statement]:
    """Every claim on every connection that has runs."""
    arms = {arm: {run.seed: run for run in done(record.of(arm))} for arm in record.arms}
    arms = {name: runs for name, runs in arms.items() if runs}
    baseline = record.arms[0]
    own: list[tuple[str, Measure, int]] = [
        ("h grows with depth", input_growth, 1),
        ("y grows with depth", output_growth, 1),
    ]
    against: list[tuple[str, Measure, int]] = [
        (f"h grows less than in {baseline}", input_growth, -1),
        (f"y grows less than in {baseline}", output_growth, -1),
        (f"gradients more even than in {baseline}", gradient_unevenness, -1),
        (f"updates more even than in {baseline}", update_unevenness, -1),
    ]
    found = []
    for claim, measure, sign in own:
        found += judged(claim, sign, _each(arms, measure))
    for claim, measure, sign in against:
        found += judged(claim, sign, paired(arms, baseline, measure))
    found += _periodic(record)
    found += judged("depth weights sharpen in training", -1, _each(arms, sharpening))
    untrained = {arm: statistics.fmean(map(embedding_excess_at_start, runs.values())) for arm, runs in arms.items()}
    details = {arm: f"{excess:+z.3f} untrained" for arm, excess in untrained.items()}
    found += judged("the embedding is a sink", 1, _each(arms, embedding_excess), details)
    sinks = {arm: early_sink(list(runs.values())) for arm, runs in arms.items()}
    details = {arm: source_name(source) for arm, (_, source) in sinks.items()}
    found += judged("an early sublayer is a sink", 1, {arm: values for arm, (values, _) in sinks.items()}, details)
    return found


def source_name(source: int) -> str:
    return "embedding" if source == 0 else sublayer_name(source - 1)


def _each(arms: Mapping[str, Mapping[int, Run]], measure: Measure) -> dict[str, list[float]]:
    return {arm: [measure(run) for run in runs.values()] for arm, runs in arms.items()}


def _periodic(record: Record) -> list[Statement]:
    """Test every connection with blocks at their size; the baseline at the first such size, as a control."""
    period_of = {arm: size for arm in record.arms if (size := record.found[arm]["block_size"] or 0) > 2}
    if not period_of:
        return []
    control = record.arms[0]
    if control in period_of:
        control = None
    else:
        period_of[control] = next(iter(period_of.values()))
    found = []
    for what, name, part in (
        ("h is periodic by block", "input_rms", slice(None, -1)),
        ("y is periodic by block", "output_rms", slice(1, None)),
    ):
        of_claim = []
        for arm in record.arms:
            runs = done(record.of(arm))
            if arm not in period_of or not runs:
                continue
            series = np.array([run.measured["moments"][-1][name][part] for run in runs])
            period = period_of[arm]
            result = periodicity(series, period)
            if result is not None:
                detail = f"period {period}" + ", control" * (arm == control)
                of_claim.append(Statement(what, arm, result.amplitude, None, len(runs), result.p_value, 1, detail))
        corrected = holm([statement.p_value for statement in of_claim])
        found += [replace(statement, p_value=p) for statement, p in zip(of_claim, corrected, strict=True)]
    return found


def finding(record: Record) -> str:
    """What was decided of what sublayers read; of all else where nothing was."""
    return summary(statements(record), first=lambda claim: claim.startswith("h "))


def dynamics_tables(record: Record) -> list[TextTable]:
    """Magnitudes, depth weights and ranks of every connection, then what they show."""
    return [_magnitudes(record), _weights(record), *_statements(record)]


def _magnitudes(record: Record) -> TextTable:
    measures: dict[str, tuple[Measure, str]] = {
        "loss": (lambda run: run.loss, ".4f"),
        "h: growth": (input_growth, "+.2f"),
        "h: max/min": (lambda run: log_range(run.measured["moments"][-1]["input_rms"][1:-1]), ".2f"),
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
        sink = ""
        if runs:
            excess, source = early_sink(runs)
            sink = f"{source_name(source)}: x{np.exp(statistics.fmean(excess)):.2f}"
        ranks = [run.measured["ranks"] for run in runs]
        largest = max((rank["semiseparable"] for rank in ranks), default=0)
        rows.append(
            (
                arm,
                mean_text([relative_entropy(run.measured["moments"][0]) for run in runs], ".3f"),
                mean_text([relative_entropy(run.measured["moments"][-1]) for run in runs], ".3f"),
                mean_text([float(np.exp(embedding_excess(run))) for run in runs], ".2f", "x"),
                sink,
                mean_text([rank["effective"] for rank in ranks], ".2f"),
                mean_text([rank["semiseparable_mean"] for rank in ranks], ".2f"),
                f"{largest} of {record.found[arm]['rank_bound']}" if ranks else "",
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
        "carries leave room for (docs/spec.md 2)."
    )
    return TextTable("Depth weights and ranks of M", columns, tuple(rows), note)


def _statements(record: Record) -> list[TextTable]:
    note = (
        f"{DECIDED} and the value is at least {NEGLIGIBLE} in size; refuted too where its 95% interval lies within "
        "that. Periods: by permuting sublayers of a kind. Values are natural logarithms, or differences of spread or "
        "relative entropy."
    )
    return statement_tables("What this shows", statements(record), note)
