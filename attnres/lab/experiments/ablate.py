"""The paper's ablation table at laptop scale: every residual rule, its learning rate tuned, with error bars.

    attnres ablate
    attnres ablate residual block full hc --seeds 5 --embedding-stds 1.0
    attnres ablate residual full full:heads=4 --grid 1 --steps 400 --out runs/heads

For each arm and scale of the embedding, the learning rates are chosen from a grid of multiples of the defaults: all of
it on one seed, the best two on others too, none of them reported; then every arm runs on the same seeds, so differences
to the first arm are paired. Every run is a one-thread process with a folder of its own; stop it with Ctrl-C or in any
other way, and the same command continues. A run that diverges is kept, marked, and left out of the means. Ends with
tables, OUT/results.html and OUT/figures/. Runs that RECORD holds already are not run again; `attnres report RECORD`
draws from it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from attnres.analysis.comparison import Comparison, compare_arms
from attnres.analysis.comparison import finding as what_is_decided
from attnres.errors import UsageError, check_count
from attnres.lab.engine import TUNING_SEED, Planned, ProgressDisplay, Sweep, SweepEnd, choose
from attnres.lab.experiment import Experiment
from attnres.lab.judge import SEEDS, Statement, judged, mean_and_error
from attnres.lab.options import Arms, Config, PairedOptions, arm_folder, check_positive
from attnres.lab.runs import Record, RunResult, done, rate_text, runs_text
from attnres.texttable import TextTable, number
from attnres.train import RunConfig, config_to_json

if TYPE_CHECKING:
    from attnres.report.charts import Plot

ARMS = (
    "residual",
    "block",
    "full",
    "x0",
    "denseformer",
    "mhc",
    "hc",
    "window",
    "full:query=input",
    "full:mixing=static",
    "full:weighting=sigmoid",
    "full:key_norm=false",
    "full:heads=16",
    "block:block_size=2",
    "block:block_size=8",
    "block:block_size=16",
    "block:key_norm=false",
    "block:heads=16",
    "mhc-lite",
    "identity-hc",
    "rezero",
    "highway",
    "rms-residual",
    "rms-block",
    "rms-full",
    "delta:block_size=4",
    "rms-block:pending=normalised",
    "delta",
    "rms-block:block_size=8",
    "rms-block:reads=qkv-gate-up",
    "block:reads=qkv-gate-up",
    "haares",
    "kromhc",
)

# Evaluated at the start and the end: nothing is drawn from what lies between, and it is a fifth of a run's time.
DEFAULTS = RunConfig(steps=160, batch_size=4, evaluate_every=160, validation_tokens=32_768)


@dataclass(frozen=True)
class AblationOptions(PairedOptions):
    """What `attnres ablate` asks for."""

    arms: Arms = ARMS
    config: Config = DEFAULTS
    grid: tuple[float, ...] = (0.5, 1.0, 2.0)
    """Multiples of the learning rates (optimizer.lr and optimizer.adamw-lr together) to choose from."""
    tuning_seeds: int = 2
    """Seeds to choose the rates on; only the best two of the grid run on more than the first."""
    embedding_stds: tuple[float, ...] = (1.0, 0.02)
    """Scales of the embedding, each a table of its own."""


# ---------------------------------------------------------------------------------------------------------------- runs


@dataclass(frozen=True)
class AblationPlan:
    """The cells of the table, an arm at a scale of the embedding each; all of them exist."""

    options: AblationOptions
    out: Path

    @property
    def cells(self) -> list[tuple[str, str]]:
        return [(arm, f"std {std:.15g}") for std in self.options.embedding_stds for arm in self.options.arms]

    def run(self, arm: str, at: str, rate: float, seed: int, part: str = "runs") -> Planned:
        """Raises UsageError if the connection or its options do not exist."""
        config = self.options.config
        chosen = self.options.run(
            arm,
            seed,
            rate,
            dataclasses.replace(config.model, embedding_std=std_of(at)),
            save_every=config.steps,
            keep=1,  # only the last weights: there are hundreds of runs
        )
        folder = arm_folder(self.out / f"std-{std_of(at):g}", arm) / f"lr-{rate:g}" / f"seed-{seed}"
        return Planned(arm, seed, chosen, folder, at, rate, part)

    def tuning(self, arm: str, at: str, rate: float, seed: int = 0) -> Planned:
        return self.run(arm, at, rate, self.options.config.seed + TUNING_SEED + seed, "tuning")

    def reported(self, rates: Mapping[tuple[str, str], float]) -> list[Planned]:
        """Seed by seed, so that a sweep that is stopped early has pairs for every arm."""
        return [self.run(*cell, rate, seed) for seed in self.options.paired_seeds for cell, rate in rates.items()]

    def all_runs(self) -> list[Planned]:
        """All that certainly come, before any rate is chosen."""
        options, cells = self.options, self.cells
        runs = self.reported(dict.fromkeys(cells, 1.0))
        if len(options.grid) < 2:
            return runs
        grid = [self.tuning(*cell, rate) for cell in cells for rate in options.grid]
        again = [self.tuning(*cell, 1.0, seed) for cell in cells for seed in range(1, options.tuning_seeds)] * 2
        return [*grid, *again, *runs]


def plan(options: AblationOptions, out: Path) -> AblationPlan:
    """Raises UsageError on bad options, arms among them."""
    options = options.checked()
    check_positive("grid", options.grid)
    check_positive("embedding_stds", options.embedding_stds)
    check_count("tuning_seeds", options.tuning_seeds)
    return AblationPlan(options, out)


def std_of(at: str) -> float:
    return float(at.removeprefix("std "))


def run(plan: AblationPlan, file: Path, progress: ProgressDisplay) -> SweepEnd:
    """Tune the learning rate of every cell, then train it on all seeds."""
    options = plan.options
    config = config_to_json(options.config)
    settings = {"config": config, "grid": options.grid, "tuning_seeds": options.tuning_seeds}
    sweep = Sweep("ablation", options, settings, file, plan.out, progress)
    cells = plan.cells
    sweep.announce(plan.all_runs())
    if len(options.grid) == 1:
        rates = dict.fromkeys(cells, options.grid[0])
    else:
        tuned = sweep.tune(plan.tuning, cells, options.grid)
        for again in sweep.train(_playoff(plan, tuned), "tuning, the best two again"):
            tuned[again.arm, again.at].append(again)
        sweep.require_whole()
        rates = {cell: rate for cell, runs in tuned.items() if (rate := choose(runs)) is not None}
    if not rates:
        raise UsageError("no rate of --grid trains any arm; give smaller ones")
    sweep.leave_out("runs", {cell: [rate] for cell, rate in rates.items()})
    sweep.train(plan.reported(rates), "final runs")
    return sweep.ended()


def _playoff(plan: AblationPlan, tuned: Mapping[tuple[str, str], Sequence[RunResult]]) -> list[Planned]:
    """The two best rates of each cell's grid on the other tuning seeds. One seed alone often chose by a few thousandths
    of a nat between rates whose means differ by several hundredths."""
    best = {cell: sorted(done(runs), key=lambda run: run.loss)[:2] for cell, runs in tuned.items()}
    seeds = range(1, plan.options.tuning_seeds)
    return [plan.tuning(*cell, run.rate, seed) for seed in seeds for cell, runs in best.items() for run in runs]


# -------------------------------------------------------------------------------------------------------------- claims

PAPER = {
    "residual": 1.766,
    "denseformer": 1.767,
    "mhc": 1.747,
    "full": 1.737,
    "full:query=input": 1.731,
    "full:mixing=static": 1.749,
    "full:weighting=sigmoid": 1.741,
    "full:key_norm=false": 1.743,
    "window": 1.764,
    "block": 1.746,
    "block:heads=16": 1.752,
    "block:key_norm=false": 1.750,
    "block:block_size=2": 1.746,
    "block:block_size=8": 1.748,
    "block:block_size=16": 1.753,
}
"""Validation loss of the paper's 16-layer model (2603.15031, Table 4), by our arm. `block` is S = 4."""

CLAIMS = (
    ("full", "residual", "attention over depth beats the plain residual"),
    ("block", "residual", "Block S = 4 beats the plain residual"),
    ("full", "block", "Full beats Block S = 4"),
    ("full", "denseformer", "weights that depend on the input beat fixed ones"),
    ("full", "mhc", "Full beats mHC"),
    ("mhc", "residual", "mHC beats the plain residual"),
    ("full", "window", "distant sources matter more than many near ones"),
    ("full:query=input", "full", "a query from the input helps"),
    ("full", "full:mixing=static", "keys beat a mixing without them"),
    ("full", "full:weighting=sigmoid", "softmax beats sigmoid"),
    ("full", "full:key_norm=false", "keys want a norm"),
    ("block", "block:heads=16", "one head beats sixteen"),
    ("block", "block:block_size=16", "smaller blocks beat larger ones"),
)
"""(the arm that the paper finds better, the other one, what that says)"""


def scales(record: Record) -> list[str]:
    """The places of the record, the largest embedding first whatever was run first."""
    return sorted({run.at for run in record.runs}, key=std_of, reverse=True)


def comparisons(record: Record) -> Iterator[tuple[str, list[Comparison]]]:
    """Compare the arms of each embedding scale, the first one being the baseline. Runs that diverged are left out."""
    for at in scales(record):
        arms = [arm for arm in record.arms if any((run.arm, run.at) == (arm, at) for run in record.runs)]
        runs = {arm: {run.seed: run for run in done(record.of(arm, at))} for arm in arms}
        yield at, compare_arms(runs, baseline=arms[0])


def claims(record: Record) -> list[Statement]:
    """The paper's claims whose arms have paired runs, at every scale, each judged by its sign alone.

    The statement's arm is what was subtracted from what, its detail the scale.
    """
    found = []
    for at in scales(record):
        losses = {_known(arm): of_seeds for arm, of_seeds in record.losses(at).items()}
        pairs, compared = {}, {}
        for better, other, claim in CLAIMS:
            one, two = losses.get(better, {}), losses.get(other, {})
            if seeds := sorted(one.keys() & two.keys()):
                pairs[claim] = [one[seed] - two[seed] for seed in seeds]
                compared[claim] = f"{better} - {other}"
        for one in judged("", -1, pairs, negligible=0.0):
            detail = f"{std_of(at):g}"
            found.append(dataclasses.replace(one, claim=one.arm, arm=compared[one.arm], detail=detail))
    return found


def _known(arm: str) -> str:
    """The arm as PAPER and the claims call it: their Block has blocks of 4, the default at 16 layers alone."""
    connection, _, options = arm.partition(":")
    if connection not in ("block", "rms-block"):
        return arm
    return ":".join(filter(None, (connection, options.replace("block_size=4", "").strip(","))))


def rank_correlation(rows: Sequence[Comparison]) -> tuple[float, float, int] | None:
    """Kendall's tau between our losses and the paper's, its p-value, and over how many arms; None below three."""
    from scipy.stats import kendalltau

    papers = [(row.validation_loss, PAPER.get(_known(row.arm))) for row in rows]
    both = [(ours, theirs) for ours, theirs in papers if ours and theirs]
    if len(both) < 3:
        return None
    tau, p_value = kendalltau(*zip(*both, strict=True))  # type: ignore[misc]
    return float(tau), float(p_value), len(both)  # type: ignore[arg-type]


def finding(record: Record) -> str:
    """Which arms are decided at each scale, and how many of the paper's claims hold."""
    parts = [f"with embedding std {std_of(at):g}, {what_is_decided(rows)}" for at, rows in comparisons(record)]
    text = f"Validation loss in nats per byte: {'; '.join(parts)}."
    if readings := [claim.reading for claim in claims(record)]:
        agree, disagree = readings.count("shown"), readings.count("refuted")
        text += (
            f" Of {len(readings)} tests of the paper's claims {agree} agree, {disagree} disagree, the others are open."
        )
    return text


# -------------------------------------------------------------------------------------------------------------- tables


def tables(record: Record) -> list[TextTable]:
    """One for each embedding scale, best arm first, the baseline on top; then the claims, as far as any are tested."""
    made = []
    for at, (baseline, *others) in comparisons(record):
        others.sort(key=lambda row: math.inf if row.difference is None else row.difference)
        paper = PAPER.get(baseline.arm)
        rows = []
        for row in (baseline, *others):
            runs = record.of(row.arm, at)
            its = PAPER.get(_known(row.arm))
            known = None if row is baseline or paper is None or its is None else its - paper
            rows.append(
                (
                    row.arm,
                    number(row.validation_loss, ".4f"),
                    number(row.difference, "+.4f"),
                    number(row.difference_error, ".4f"),
                    _rate(runs, record.of(row.arm, at, "tuning")),
                    runs_text(runs),
                    "" if known is None else f"{known:+.3f}",
                )
            )
        note = "lr: multiple of the default rates, chosen on seeds of its own; * at the edge of the grid."
        if tau := rank_correlation([baseline, *others]):
            note += f" Order against the paper's: Kendall's tau {tau[0]:+.2f}, p = {tau[1]:.3f}, {tau[2]} arms."
        columns = ("connection", "loss", f"difference to {baseline.arm}", "standard error", "lr", "runs", "paper")
        made.append(TextTable(f"embedding std {std_of(at):g}, nats per byte", columns, tuple(rows), note))
    return made + _claim_tables(claims(record))


def _rate(runs: Sequence[RunResult], tuning: Sequence[RunResult]) -> str:
    chosen = next((run.rate for run in runs), None) or choose(tuning)
    return "none" if chosen is None else rate_text(chosen, tuning)


def _claim_tables(found: Sequence[Statement]) -> list[TextTable]:
    words = {"shown": "agrees", "refuted": "disagrees"}
    rows = tuple(
        (
            one.claim,
            one.arm,
            one.detail,
            number(one.value, "+.4f"),
            number(one.error, ".4f"),
            number(one.p_value, ".3f"),
            words.get(one.reading, one.reading),
        )
        for one in found
    )
    columns = ("the paper finds", "difference", "std", "ours", "standard error", "p", "reading")
    note = "p: two-sided paired t-test over seeds, Holm-corrected within a scale; decided where p < 0.05."
    return [TextTable("The paper's claims on these runs", columns, rows, note)] if rows else []


# ------------------------------------------------------------------------------------------------------------- figures


def pictures(record: Record) -> list[Plot]:
    """Each arm's difference to the baseline: a chart for each scale of the embedding, the best arm on top."""
    from attnres.report.charts import Plot, Row, Rows

    charts = []
    for at, (baseline, *others) in comparisons(record):
        rows = []
        for row in sorted(others, key=lambda row: (row.difference is None, row.difference)):
            points = list(row.differences.values())
            rows.append(Row(name=row.arm, points=points, **mean_and_error(points)))
        x_label = f"validation loss minus that of {baseline.arm} (nats per byte)"
        charts.append(Rows(title=f"embedding std {std_of(at):g}", x_label=x_label, rows=rows, zero=0.0))
    return [Plot(name="ablation", alt="difference to the baseline of every arm", charts=charts, note=SEEDS)]


EXPERIMENT = Experiment(
    kind="ablation",
    position=1,
    options=AblationOptions,
    plan=plan,
    run=run,
    title="Which residual rule?",
    question=(
        "The paper's Table 4: every rule with its own learning rate, on the same seeds as the baseline. Negative "
        "differences are better. Runs that diverged are counted and left out of the means."
    ),
    finding=finding,
    claims=claims,
    tables=tables,
    pictures=pictures,
)
