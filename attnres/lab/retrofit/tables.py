"""The tables of a record of retrofits."""

from __future__ import annotations

import statistics

from attnres.analysis.comparison import WIDEST
from attnres.lab.claims import NEGLIGIBLE
from attnres.lab.outcome import done_runs
from attnres.lab.retrofit.claims import differences, losses, lost_at_start, statements
from attnres.lab.retrofit.plan import percent
from attnres.lab.retrofit.record import ArmRecord, RetrofitRecord, TrialRun
from attnres.lab.tables import DECIDED, mean_text, runs_text, statement_tables
from attnres.lab.tuning import choose
from attnres.texttable import TextTable, number


def retrofit_tables(record: RetrofitRecord) -> list[TextTable]:
    """One for each length of further training, what the arms cost, and what is shown."""
    note = (
        f"{DECIDED}, and at least {NEGLIGIBLE:g} nats per byte in size; refuted where the 95% interval is within that."
    )
    return [
        *(_after(record, fraction) for fraction in record.fractions),
        _arms(record),
        *statement_tables("What retrofits show", statements(record), note),
    ]


def _after(record: RetrofitRecord, fraction: float) -> TextTable:
    of_arms, against = losses(record, fraction), differences(record, fraction)
    runs = [run for run in record.runs if run.fraction == fraction]
    own_steps = len({run.steps for run in runs}) > 1
    rows = tuple(
        (
            arm.name,
            mean_text(list(of_arms[arm.name].values()), ".4f"),
            mean_text(against.get(arm.name, []), "+.4f"),
            _rate([run for run in record.tuning if (run.arm, run.fraction) == (arm.name, fraction)], runs, arm),
            *([", ".join(sorted({str(run.steps) for run in runs if run.arm == arm.name}))] if own_steps else []),
            runs_text([run for run in runs if run.arm == arm.name]),
        )
        for arm in record.arms
    )
    seeds = {run.seed for run in runs}
    plain = [run.loss for run in done_runs(record.plain) if run.seed in seeds]
    before = f"; {number(statistics.fmean(plain), '.4f')} before" if plain else ""
    note = (
        f"nats per byte, mean ± standard error over seeds{before}. lr: multiple of the rates "
        "of the plain model's training"
    )
    note += ", chosen on a seed of its own; * at the edge of what was tried." if record.tuning else "."
    if own_steps:
        note += " Every arm spends the operations of the first one."
    columns = ("connection", "loss", f"difference to {record.arms[0].name}", "lr")
    columns = (*columns, *(["steps"] if own_steps else []), "runs")
    return TextTable(f"After {percent(fraction)} more: {runs[0].steps} steps", columns, rows, note)


def _rate(tuning: list[TrialRun], runs: list[TrialRun], arm: ArmRecord) -> str:
    used = {run.factor for run in runs if run.arm == arm.name}
    if not used:
        return "none"
    tried = {run.factor for run in tuning}
    edge = "*" * (len(tried) > 1 and choose(tuning) in (min(tried), max(tried)))
    return ", ".join(f"x{factor:g}" for factor in sorted(used)) + edge


def _arms(record: RetrofitRecord) -> TextTable:
    plain = record.arms[0]
    rows = []
    for arm in record.arms:
        lost = lost_at_start(record, arm.name)
        rows.append(
            (
                arm.name,
                arm.connection,
                "" if arm is plain else f"{arm.rate:g}x",
                number(lost, "+.6f"),
                f"{arm.flops_per_token / plain.flops_per_token:.3f}",
                _step_time(record, arm.name),
            )
        )
    note = (
        "connection's lr: over the model's. lost: loss before the first step minus the plain model's, the largest of "
        "all seeds. Operations: of one training step, over the plain twin's. Step time: of the longest runs, over the "
        "plain twin's of the same seed, median [lowest, highest]; other work on the machine blurs it, and where these "
        f"are more than {WIDEST:g} times apart it is withheld."
    )
    columns = ("connection", "as attached", "connection's lr", "lost at the start", "operations", "step time")
    return TextTable("What the arms are and cost", columns, tuple(rows), note)


def _step_time(record: RetrofitRecord, arm: str) -> str:
    longest = [run for run in done_runs(record.runs) if run.fraction == record.fractions[-1]]
    seconds = {(run.arm, run.seed): run.step_seconds for run in longest if run.step_seconds}
    plain = record.arms[0].name
    ratios = [
        of / seconds[plain, seed] for (name, seed), of in seconds.items() if name == arm and (plain, seed) in seconds
    ]
    if not ratios or arm == plain:
        return "1.00" if ratios else ""
    if max(ratios) > WIDEST * min(ratios):
        return "withheld"
    spread = f" [{min(ratios):.2f}, {max(ratios):.2f}]" if len(ratios) > 1 else ""
    return f"{statistics.median(ratios):.2f}{spread}"
