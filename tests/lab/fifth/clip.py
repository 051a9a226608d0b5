"""Clip gradients or not: an experiment that shows that one file is all that an experiment is.

attnres clip
attnres clip residual full --clips 0.1 1
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from attnres.lab.engine import Planned, ProgressDisplay, Sweep, SweepEnd
from attnres.lab.experiment import Experiment
from attnres.lab.judge import DECIDED, Statement, judged, mean_text, paired, statement_tables, summary
from attnres.lab.options import Arms, Config, PairedOptions, arm_folder, check_positive
from attnres.lab.runs import Record, runs_text
from attnres.report.charts import Plot, Row, Rows
from attnres.texttable import TextTable
from attnres.train import RunConfig, config_to_json

DEFAULTS = RunConfig(steps=40)


@dataclass(frozen=True)
class Options(PairedOptions):
    """What `attnres clip` asks for."""

    arms: Arms = ("residual", "block")
    seeds: int = 2
    config: Config = DEFAULTS
    clips: tuple[float, ...] = (0.1, 1.0)
    """The largest norms of a gradient."""


def plan(options: Options, out: Path) -> tuple[Options, list[Planned]]:
    options = options.checked()
    check_positive("clips", options.clips)
    runs = []
    for seed in options.paired_seeds:
        for arm in options.arms:
            for clip in options.clips:
                optimizer = dataclasses.replace(options.config.optimizer, clip=clip)
                config = dataclasses.replace(options.run(arm, seed), optimizer=optimizer)
                folder = arm_folder(out, arm) / f"clip-{clip:g}" / f"seed-{seed}"
                runs.append(Planned(arm, seed, config, folder, at=f"clip {clip:g}"))
    return options, runs


def run(plan: tuple[Options, list[Planned]], file: Path, progress: ProgressDisplay) -> SweepEnd:
    options, runs = plan
    settings = {"config": config_to_json(options.config)}
    sweep = Sweep("toy", options, settings, file, file.parent, progress)
    sweep.announce(runs)
    sweep.train(runs)
    return sweep.ended(["clipped by a fair hand"])


def claims(record: Record) -> list[Statement]:
    baseline = record.arms[0]
    pairs = {at: paired(record.losses(at), baseline, float) for at in record.places()}
    return [one for at, of_arms in pairs.items() for one in judged(f"{at}: below {baseline}", -1, of_arms)]


def tables(record: Record) -> list[TextTable]:
    rows = [(arm, at, mean_text(list(losses.values()), ".4f"), runs_text(record.of(arm, at)))
            for at in record.places() for arm, losses in record.losses(at).items()]  # fmt: skip
    all_losses = TextTable("Losses", ("connection", "clip", "loss", "runs"), tuple(rows), "nats per byte")
    return [all_losses, *statement_tables("Does it help?", claims(record), f"{DECIDED}.")]


def pictures(record: Record) -> list[Plot]:
    rows = [Row(name=run.arm, points=[run.loss]) for run in record.runs]
    chart = Rows(title="the loss of every run", x_label="nats per byte", rows=rows)
    return [Plot(name="toy", alt="the loss of every run", charts=[chart])]


EXPERIMENT = Experiment(
    kind="toy",
    position=9,
    options=Options,
    plan=plan,
    run=run,
    title="Does clipping help?",
    question="Every connection at every largest norm.",
    finding=lambda record: summary(claims(record)),
    claims=claims,
    tables=tables,
    pictures=pictures,
)
