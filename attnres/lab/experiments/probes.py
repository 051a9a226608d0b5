"""Ask trained models of bytes: the next byte, which bracket closes, indentation, names, copies: what is a lead worth?

    attnres probe --runs runs/dynamics
    attnres probe runs/compare/residual/seed-0 runs/compare/block/seed-0
    attnres probe --runs runs/ladder-16 --tokens 262144 --out runs/probe-ladder

Asks on held-out files for the next byte; for the kind of bracket that closes the innermost open one; whether a line's
indentation goes on; for names that were last seen half a window ago; and for text and random letters that come again in
one window. Runs of one connection and several seeds make one row, and differences to the residual (or the first
connection, where there is none) are paired by seed. Runs that are not finished, or that ended no lower than they began,
are marked and left out. Ends with tables, OUT/results.html and OUT/figures/; `attnres report RECORD` draws them from
RECORD.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from attnres.errors import UsageError, check_count
from attnres.lab.engine import Planned, Progress, Sweep, SweepEnd, differing
from attnres.lab.experiment import Experiment
from attnres.lab.judge import (
    DECIDED,
    NEGLIGIBLE,
    SEEDS,
    Statement,
    judged,
    mean_and_error,
    mean_text,
    paired,
    statement_tables,
    summary,
)
from attnres.lab.runs import Record, done, runs_text
from attnres.texttable import TextTable
from attnres.train import RunConfig, config_to_json

if TYPE_CHECKING:
    from attnres.report.charts import Plot


@dataclass(frozen=True)
class Options:
    """What `attnres probe` asks for."""

    folders: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN")] = ()
    """Run folders, or folders that hold some."""
    runs: Path | None = None
    """A folder of which every run inside is taken."""
    tokens: int = 65_536
    """Held-out tokens to ask on, the same ones for every run: whole windows, at least one."""


@dataclass(frozen=True)
class Plan:
    options: Options
    runs: list[Planned]
    """The baseline's first."""
    out: Path


def plan(options: Options, out: Path) -> Plan:
    """Raises UsageError where there is no run that is finished, or one that does not read bytes."""
    from attnres.train.folder import RunFolder

    given = [*options.folders, *([] if options.runs is None else [options.runs])]
    if not given:
        raise UsageError("give run folders, or a folder that holds some with --runs")
    check_count("tokens", options.tokens)
    folders = dict.fromkeys(folder.resolve() for place in given for folder in runs_inside(place))
    runs = []
    for folder in folders:
        config = RunFolder(folder).config()
        runs.append(Planned(config.model.connection, config.seed, config, folder))
    refuse_what_does_not_compare(runs)
    if (tokenizer := runs[0].config.data.tokenizer) != "bytes":
        raise UsageError(f"the probes ask for bytes, and these runs read {tokenizer}; give runs that read bytes")
    if not any(map(is_finished, runs)):
        raise UsageError(f"no run is finished; train {runs[0].folder} to its end")
    arms = [one.arm for one in runs if is_finished(one)]
    baseline = "residual" if "residual" in arms else arms[0]
    return Plan(options, sorted(runs, key=lambda one: (not is_finished(one), one.arm != baseline)), out)


def runs_inside(place: Path) -> list[Path]:
    """The folders of runs in a folder, which may be one itself. steps-N in a run is an end that it had before."""
    found = sorted(file.parent for file in place.rglob("metrics.jsonl") if not file.parent.name.startswith("steps-"))
    if not found:
        raise UsageError(f"{place}: no run there; give run folders, or a folder that holds some")
    return found


def is_finished(one: Planned) -> bool:
    from attnres.train.folder import RunFolder

    return RunFolder(one.folder).summary() is not None


def refuse_what_does_not_compare(runs: Sequence[Planned]) -> None:
    """Raise UsageError where runs differ in more than connection, seed and learning rates, or two are one.

    A run may begin with another of its own, but either all of them do or none does.
    """
    seen: dict[tuple[str, int], Path] = {}
    for one in runs:
        apart = differing(*({"config": config_to_json(shared(each.config))} for each in (runs[0], one)))
        if bool(one.config.start_from) != bool(runs[0].config.start_from):
            apart.append("start_from")
        if apart:
            raise UsageError(
                f"{one.folder} and {runs[0].folder} are runs of different configurations ({', '.join(apart)}); give "
                "runs that differ in connection and seed alone"
            )
        if (other := seen.setdefault((one.arm, one.seed), one.folder)) != one.folder:
            raise UsageError(f"{one.folder} and {other} are both {one.arm}, seed {one.seed}; give one of them")


def shared(config: RunConfig) -> RunConfig:
    """What the configurations of the runs have in common."""
    plain = RunConfig()
    model = dataclasses.replace(config.model, connection=plain.model.connection)
    rates = {name: getattr(plain.optimizer, name) for name in ("lr", "adamw_lr", "connection_rate")}
    optimizer = dataclasses.replace(config.optimizer, **rates)
    return dataclasses.replace(config, model=model, seed=plain.seed, start_from=None, optimizer=optimizer)


def run(plan: Plan, file: Path, progress: Progress) -> SweepEnd:
    """Ask runs everything, and record how often they are right. What is recorded is not asked again."""
    import numpy as np

    from attnres.data import validation_batches
    from attnres.lab import tasks
    from attnres.train import load_run
    from attnres.train.sweep import Job, JobState, refuse_other_texts

    def measure(one: Planned) -> Mapping[str, Any]:
        return {"right": tasks.shares_right(load_run(one.folder).model, asked)}

    config = plan.runs[0].config
    arms = list(dict.fromkeys(one.arm for one in plan.runs))
    settings = {"config": config_to_json(shared(config)), "tokens": plan.options.tokens}
    sweep = Sweep("probes", arms, settings, config, 1, file, plan.out, progress, measure)
    states = [JobState(Job(one.name, one.config, one.folder), status="done") for one in plan.runs]
    refuse_other_texts([state.job for state in states], sweep.corpus)
    batches = validation_batches(sweep.corpus, config.model.context, tasks.BATCH, plan.options.tokens)
    text = np.concatenate(list(batches))
    asked = [task for task in tasks.tasks(text) if task.asked.any()]
    about = [
        {"name": t.name, "what": t.what, "places": int(t.asked.sum()), "commonest": tasks.commonest(t)} for t in asked
    ]
    sweep.find(tasks=about, tokens=text[:, 1:].size)
    for number, (one, state) in enumerate(zip(plan.runs, states, strict=True)):
        if not is_finished(one):
            sweep.ran[one.key] = one.ended(status="unfinished")
        elif not sweep.has(one):
            progress(number, len(plan.runs), f"asking {one.name}")
            sweep.end(one, state)
    ended = [(one, sweep.ran[one.key].status) for one in plan.runs]
    return sweep.ended([f"left out: {one.folder} ({status})" for one, status in ended if status != "done"])


def gains(record: Record, task: int) -> dict[str, list[float]]:
    """Arm -> the share of right answers less that of the baseline, seed by seed."""
    arms = {arm: {run.seed: run.measured["right"][task] for run in done(record.of(arm))} for arm in record.arms}
    return paired(arms, record.arms[0], lambda share: share)


def claims(record: Record) -> list[Statement]:
    """Is an arm right more often than the baseline?"""
    found = []
    for index, task in enumerate(record.found["tasks"]):
        claim = f"{task['name']}: more often right than {record.arms[0]}"
        found += judged(claim, 1, gains(record, index), counted=True)
    return found


def finding(record: Record) -> str:
    """In which tasks which arms are better or no better."""
    return summary(claims(record))


def tables(record: Record) -> list[TextTable]:
    """The shares of right answers, and whether they differ."""
    tasks = record.found["tasks"]
    rows = [("(commonest answer)", "", *(f"{task['commonest']:.4f}" for task in tasks), "")]
    for arm in record.arms:
        runs = done(record.of(arm))
        shares = (mean_text([run.measured["right"][index] for run in runs], ".4f") for index in range(len(tasks)))
        rows.append((arm, mean_text([run.loss for run in runs], ".4f"), *shares, runs_text(record.of(arm))))
    asked = "; ".join(f"{task['name']}: {task['what']}, {task['places']} places" for task in tasks)
    tokens = record.found["tokens"]
    note = f"Share of right answers, mean ± standard error over seeds, on {tokens} held-out tokens. {asked}."
    columns = ("connection", "loss", *(task["name"] for task in tasks), "runs")
    shown = (
        f"{DECIDED} and the difference is at least {NEGLIGIBLE:g}; refuted, too, where its 95% interval is within that."
        " A difference that is the same in every seed decides nothing."
    )
    right = TextTable("What runs get right", columns, tuple(rows), note)
    return [right, *statement_tables("What a lead is worth", claims(record), shown)]


def pictures(record: Record) -> list[Plot]:
    """Every task's gain over the baseline in percentage points, seed by seed."""
    from attnres.report.charts import Plot, Row, Rows

    charts = []
    for index, task in enumerate(record.found["tasks"]):
        rows = []
        for arm, shares in gains(record, index).items():
            points = [100 * share for share in shares]
            rows.append(Row(name=arm, points=points, **mean_and_error(points)))
        charts.append(Rows(title=task["name"], x_label=f"points above {record.arms[0]}", rows=rows, zero=0.0))
    if not charts or not charts[0].rows:
        return []
    alt = "share of right answers over the baseline's, task by task"
    return [Plot(name="probes", alt=alt, charts=charts, note=SEEDS)]


EXPERIMENT = Experiment(
    command="probe",
    position=6,
    options=Options,
    plan=plan,
    run=run,
    title="What is a lead worth?",
    question="How often models are right, on held-out text and on texts that are made of it.",
    finding=finding,
    claims=claims,
    tables=tables,
    pictures=pictures,
)
