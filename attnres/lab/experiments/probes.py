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

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from attnres.errors import UsageError, check_count
from attnres.lab.engine import Ended, Planned, Progress, Sweep
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
from attnres.train import config_to_json

if TYPE_CHECKING:
    from attnres.lab.trained import Trained
    from attnres.report.charts import Picture


@dataclass(frozen=True)
class Options:
    """What `attnres probe` asks for."""

    folders: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN")] = ()
    """Run folders."""
    runs: Path | None = None
    """A folder of which every run inside is taken."""
    tokens: int = 65_536
    """Held-out tokens to ask on, the same ones for every run: whole windows, at least one."""


@dataclass(frozen=True)
class Plan:
    options: Options
    runs: list[Trained]
    """The baseline's first. Those that are not done are named and left out."""
    out: Path


def plan(options: Options, out: Path) -> Plan:
    """Raises UsageError where there is no run that is finished, or one that does not read bytes."""
    from attnres.lab.trained import find_runs, open_runs

    given = [*options.folders, *([] if options.runs is None else [options.runs])]
    if not given:
        raise UsageError("give run folders, or a folder that holds some with --runs")
    check_count("tokens", options.tokens)
    runs = open_runs(find_runs(given))
    finished = [run for run in runs if run.status == "done"]
    if not finished:
        raise UsageError(f"no run is finished: {runs[0].folder.path} is {runs[0].status}")
    if (tokenizer := finished[0].config.data.tokenizer) != "bytes":
        raise UsageError(f"the probes ask for bytes, and these runs read {tokenizer}; give runs that read bytes")
    arms = [run.arm for run in finished]
    baseline = "residual" if "residual" in arms else arms[0]
    return Plan(options, sorted(runs, key=lambda run: run.arm != baseline), out)


def run(plan: Plan, file: Path, progress: Progress) -> Ended:
    """Ask runs everything, and record how often they are right. What is recorded is not asked again."""
    import numpy as np

    from attnres.data import validation_batches
    from attnres.lab import tasks
    from attnres.train import load_run
    from attnres.train.sweep import Job, JobState

    def measure(one: Planned) -> Mapping[str, Any]:
        return {"right": tasks.shares_right(load_run(one.folder).model, asked)}

    finished = [one for one in plan.runs if one.status == "done"]
    config = finished[0].config
    arms = list(dict.fromkeys(one.arm for one in [*finished, *plan.runs]))
    settings = {"config": config_to_json(shared(config)), "tokens": plan.options.tokens}
    sweep = Sweep("probes", arms, settings, config, 1, file, plan.out, progress, measure)
    for one in finished:
        one.folder.refuse_other_text(sweep.corpus, "leave the run out")
    batches = validation_batches(sweep.corpus, config.model.context, tasks.BATCH, plan.options.tokens)
    text = np.concatenate(list(batches))
    asked = [task for task in tasks.tasks(text) if task.asked.any()]
    about = [
        {"name": t.name, "what": t.what, "places": int(t.asked.sum()), "commonest": tasks.commonest(t)} for t in asked
    ]
    sweep.find(tasks=about, tokens=text[:, 1:].size)
    for number, one in enumerate(plan.runs):
        planned = Planned(one.arm, one.config.seed, one.config, one.folder.path)
        if one.status != "done":
            sweep.ran[planned.key] = planned.ended(status=one.status)
        elif not sweep.has(planned):
            progress(number, len(plan.runs), f"asking {planned.name}")
            sweep.end(planned, JobState(Job(planned.name, one.config, one.folder.path), status="done"))
    return sweep.ended([f"left out: {one.folder.path} ({one.status})" for one in plan.runs if one.status != "done"])


def shared(config: Any) -> Any:
    """What the configurations of the runs have in common."""
    import dataclasses

    from attnres.train import RunConfig

    plain = RunConfig()
    model = dataclasses.replace(config.model, connection=plain.model.connection)
    optimizer = {name: getattr(plain.optimizer, name) for name in ("lr", "adamw_lr", "connection_rate")}
    return dataclasses.replace(
        config,
        model=model,
        seed=plain.seed,
        start_from=None,
        optimizer=dataclasses.replace(config.optimizer, **optimizer),
    )


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


def pictures(record: Record) -> list[Picture]:
    """Every task's gain over the baseline in percentage points, seed by seed."""
    from attnres.report.charts import Picture, Row, Rows

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
    return [Picture(name="probes", alt=alt, charts=charts, note=SEEDS)]


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
    figures=("probes",),
    pictures=pictures,
)
