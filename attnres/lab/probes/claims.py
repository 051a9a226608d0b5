"""What probes say: what is a lead in the loss worth?"""

from __future__ import annotations

from attnres.lab.claims import Statement, judged, paired, summary
from attnres.lab.outcome import done_runs
from attnres.lab.probes.record import ProbedRun, ProbesRecord


def by_arm(record: ProbesRecord) -> dict[str, list[ProbedRun]]:
    """The record's runs, the baseline's first."""
    arms: dict[str, list[ProbedRun]] = {record.baseline: []}
    for run in record.runs:
        arms.setdefault(run.arm, []).append(run)
    return arms


def gains(record: ProbesRecord, task: int) -> dict[str, list[float]]:
    """Arm -> the share of right answers less that of the baseline, seed by seed."""
    arms = {arm: {run.seed: run.right[task] for run in done_runs(runs)} for arm, runs in by_arm(record).items()}
    return paired(arms, record.baseline, lambda share: share)


def statements(record: ProbesRecord) -> list[Statement]:
    """Is an arm right more often than the baseline?"""
    found = []
    for index, task in enumerate(record.tasks):
        found += judged(f"{task.name}: more often right than {record.baseline}", 1, gains(record, index), counted=True)
    return found


def finding(record: ProbesRecord) -> str:
    """In which tasks which arms are better or no better."""
    return summary(statements(record))
