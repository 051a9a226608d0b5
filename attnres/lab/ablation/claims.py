"""What an ablation's record says: differences to the baseline, where its order is the paper's, what successors add."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from attnres.analysis.comparison import (
    SIGNIFICANCE,
    Comparison,
    compare_arms,
    decided_sides,
    holm,
    paired_p_value,
    standard_error,
)
from attnres.lab.ablation.record import AblationRecord, TrialRun
from attnres.lab.outcome import done_runs
from attnres.lab.paper import ABLATION as PAPER
from attnres.lab.paper import CLAIMS

Side = str | tuple[str, str]
"""An arm, or an arm and another one that it is held against."""

SUCCESSORS: tuple[tuple[Side, Side, str], ...] = (
    ("rms-residual", "residual", "normalising outputs helps, without attention"),
    ("rms-block", "block", "normalising outputs helps under attention"),
    ("rms-block", "rms-residual", "attention helps on normalised outputs"),
    (("rms-block", "rms-residual"), ("block", "residual"), "attention helps more there than on raw ones"),
    ("block", "rms-residual", "Block beats the control that only normalises"),
    ("rms-full", "rms-block", "RMS Full beats RMS Block"),
    ("rms-block:pending=normalised", "rms-block", "normalising the open block at once helps"),
    ("delta:block_size=4", "residual", "Delta Block beats the plain residual"),
    ("delta:block_size=4", "block", "Delta Block beats Block"),
    ("block:reads=qkv-gate-up", "block", "reads of their own help Block"),
    ("rms-block:reads=qkv-gate-up", "rms-block", "reads of their own help RMS Block"),
)
"""(what is said to be better, the other one, what that says), of the rules that came after Block."""


def scales(record: AblationRecord) -> list[float]:
    """The embedding's standard deviations, the largest first whatever was run first."""
    return sorted(record.embedding_stds, reverse=True)


def comparisons(record: AblationRecord) -> Iterator[tuple[float, list[Comparison]]]:
    """Compare the arms of each embedding scale, the first one being the baseline. Runs that diverged are left out."""
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
    """One claim on our runs at one embedding scale."""

    better: Side
    other: Side
    claim: str
    embedding_std: float
    difference: float
    """Mean over seeds of loss(better) - loss(other): negative agrees."""
    error: float | None
    p_value: float | None
    """The p-value of a two-sided paired t-test, Holm-corrected over the claims tested at this scale."""

    @property
    def compared(self) -> str:
        """What was subtracted from what."""
        sides = (side if isinstance(side, str) else f"({side[0]} - {side[1]})" for side in (self.better, self.other))
        return " - ".join(sides)

    @property
    def reading(self) -> str:
        if self.p_value is None or self.p_value >= SIGNIFICANCE:
            return "not decided"
        return "agrees" if self.difference < 0 else "disagrees"


def all_verdicts(record: AblationRecord) -> list[Verdict]:
    """Judge the paper's claims, and apart from them those on the successors."""
    return [*verdicts(record, CLAIMS), *verdicts(record, SUCCESSORS)]


def verdicts(record: AblationRecord, claims: Sequence[tuple[Side, Side, str]]) -> list[Verdict]:
    """Judge every claim whose arms have paired runs; p-values are corrected over the claims that are given."""
    found = []
    for std in scales(record):
        losses = losses_at(record, std)
        pairs = {}
        for better, other, claim in claims:
            one, two = _values(losses, better), _values(losses, other)
            if seeds := sorted(one.keys() & two.keys()):
                pairs[better, other, claim] = [one[seed] - two[seed] for seed in seeds]
        p_values = holm([paired_p_value(values) for values in pairs.values()])
        for ((better, other, claim), values), p_value in zip(pairs.items(), p_values, strict=True):
            mean, error = statistics.fmean(values), standard_error(values)
            found.append(Verdict(better, other, claim, std, mean, error, p_value))
    return found


def _values(losses: Mapping[str, Mapping[int, float]], side: Side) -> dict[int, float]:
    """seed -> the arm's loss, or its difference to the arm that it is held against."""
    if isinstance(side, str):
        return dict(losses.get(side, {}))
    one, two = (losses.get(arm, {}) for arm in side)
    return {seed: one[seed] - two[seed] for seed in one.keys() & two.keys()}


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
    """Which arms are decided at each scale, and how many of the paper's claims hold."""
    parts = []
    for std, (baseline, *others) in comparisons(record):
        compared = [row for row in others if row.difference is not None]
        undecided = sum(not row.decided for row in compared)
        if not compared:
            said = f"nothing could be compared: no seed of {baseline.arm} and another one ended"
        elif sides := decided_sides([baseline, *compared]):
            said = sides + (f", not decided: {undecided} of {len(compared)} arms" if undecided else "")
        else:
            said = f"no arm is decided against {baseline.arm}"
        parts.append(f"at {std:g} {said}")
    text = f"By embedding std: {'; '.join(parts)} (nats per byte)."
    if readings := [verdict.reading for verdict in verdicts(record, CLAIMS)]:
        agree, disagree = readings.count("agrees"), readings.count("disagrees")
        text += (
            f" Of {len(readings)} tests of the paper's claims {agree} agree, {disagree} disagree, the others are open."
        )
    return text
