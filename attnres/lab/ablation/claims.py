"""What an ablation's record says: differences to the baseline, and where its order is the paper's."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from dataclasses import dataclass

from attnres.analysis.comparison import Comparison, compare_arms, holm, paired_p_value, standard_error
from attnres.lab.ablation.record import AblationRecord, TrialRun
from attnres.lab.claims import SIGNIFICANCE
from attnres.lab.outcome import done_runs
from attnres.lab.paper import ABLATION as PAPER
from attnres.lab.paper import CLAIMS


def scales(record: AblationRecord) -> list[float]:
    """The embedding's standard deviations, the largest first whatever was run first."""
    return sorted(record.embedding_stds, reverse=True)


def comparisons(record: AblationRecord) -> Iterator[tuple[float, list[Comparison]]]:
    """For each embedding scale the arms, the first one being the baseline. Runs that diverged are left out."""
    for std in scales(record):
        cells = [cell for cell in record.cells if cell.embedding_std == std]
        summaries = {
            cell.arm: {run.seed: {"validation_loss": run.loss, **_cost(run)} for run in done_runs(cell.runs)}
            for cell in cells
        }
        if cells:
            yield std, compare_arms(summaries, baseline=cells[0].arm)


def _cost(run: TrialRun) -> dict[str, float]:
    return {"step_seconds": run.step_seconds or math.nan, "peak_memory_bytes": run.peak_memory_bytes or math.nan}


def losses_at(record: AblationRecord, std: float) -> dict[str, dict[int, float]]:
    """arm -> seed -> loss, of the runs at that scale that are done."""
    return {
        cell.arm: {run.seed: run.loss for run in done_runs(cell.runs)}
        for cell in record.cells
        if cell.embedding_std == std
    }


@dataclass(frozen=True)
class Verdict:
    """One claim of the paper, on our runs at one embedding scale."""

    better: str
    other: str
    claim: str
    embedding_std: float
    difference: float
    """Mean over seeds of loss(better) - loss(other): negative agrees."""
    error: float | None
    p_value: float | None
    """The p-value of a two-sided paired t-test, Holm-corrected over the claims tested at this scale."""

    @property
    def reading(self) -> str:
        if self.p_value is None or self.p_value >= SIGNIFICANCE:
            return "not decided"
        return "agrees" if self.difference < 0 else "disagrees"


def verdicts(record: AblationRecord) -> list[Verdict]:
    """Every claim of the paper that both arms have paired runs for."""
    found = []
    for std in scales(record):
        losses = losses_at(record, std)
        pairs = {}
        for better, other, claim in CLAIMS:
            seeds = losses.get(better, {}).keys() & losses.get(other, {}).keys()
            if seeds:
                pairs[better, other, claim] = [losses[better][seed] - losses[other][seed] for seed in sorted(seeds)]
        p_values = holm([paired_p_value(values) for values in pairs.values()])
        for ((better, other, claim), values), p_value in zip(pairs.items(), p_values, strict=True):
            mean, error = statistics.fmean(values), standard_error(values)
            found.append(Verdict(better, other, claim, std, mean, error, p_value))
    return found


def rank_correlation(record: AblationRecord, std: float) -> tuple[float, float, int] | None:
    """Kendall's tau between our losses and the paper's, its p-value, and over how many arms; None below three."""
    from scipy.stats import kendalltau

    rows = next((rows for scale, rows in comparisons(record) if scale == std), [])
    both = [(row.validation_loss, PAPER[row.arm]) for row in rows if row.arm in PAPER and row.validation_loss]
    if len(both) < 3:
        return None
    ours, papers = zip(*both, strict=True)
    tau, p_value = kendalltau(ours, papers)  # type: ignore[misc]
    return float(tau), float(p_value), len(both)  # type: ignore[arg-type]


def finding(record: AblationRecord) -> str:
    """Which arm is best at each scale, and how many of the paper's claims hold."""
    parts = []
    for std, (baseline, *others) in comparisons(record):
        best = min(others, key=lambda row: math.inf if row.difference is None else row.difference, default=baseline)
        if best.difference is None or best.difference >= 0:
            parts.append(f"at {std:g} nothing ends below {baseline.arm}")
            continue
        error = "" if best.difference_error is None else f" ± {best.difference_error:.3f}"
        parts.append(f"at {std:g} {best.arm} ends {-best.difference:.3f}{error} below {baseline.arm}")
    text = f"By embedding std: {', '.join(parts)} (nats per byte)."
    if readings := [verdict.reading for verdict in verdicts(record)]:
        agree, disagree = readings.count("agrees"), readings.count("disagrees")
        text += (
            f" Of {len(readings)} tests of the paper's claims {agree} agree, {disagree} disagree, the others are open."
        )
    return text
