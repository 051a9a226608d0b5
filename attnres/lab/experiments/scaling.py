"""Scaling laws at laptop scale: loss against compute for several sizes, and the compute that a connection saves.

    attnres scaling
    attnres scaling residual full --sizes 8x32 12x48 16x64 --seeds 2
    attnres scaling residual block --sizes 16x32 16x48 16x64 --tokens-per-parameter 20 --grid 0.5 1 2

Trains every connection at every size on tokens in proportion to the parameters, fits L = A C^-a in log space, and says
how many times the compute the first connection needs for the others' loss, along the range and with 95% bootstrap
intervals, of each and of all at once. With --grid every arm gets its own learning rates. Every run has a folder of its
own; stop it with Ctrl-C or in any other way, and the same command goes on. RECORD has what is done after every phase
and where the sweep was stopped, and is all that another machine needs to go on with it. Ends with a table,
OUT/results.html and OUT/figures/; `attnres report RECORD` draws them again from RECORD, and `attnres fit` fits points
from anywhere.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnres.errors import UsageError, check_count
from attnres.lab.engine import TUNING_SEED, Planned, ProgressDisplay, Sweep, SweepEnd, rounded
from attnres.lab.experiment import Experiment
from attnres.lab.judge import mean_and_error, mean_text
from attnres.lab.options import Arms, Config, PairedOptions, arm_folder, check_positive
from attnres.lab.runs import Record, RunResult, done, rate_text
from attnres.model import TransformerConfig
from attnres.texttable import TextTable
from attnres.train import RunConfig, config_to_json

if TYPE_CHECKING:
    from attnres.report.charts import Plot

HEAD_DIM = 16
MOST_BEYOND = 3
"""How often a grid is made wider where the best lies at its edge."""

ARMS = ("residual", "block", "full")
SIZES = ("16x32", "16x48", "20x64", "24x80", "28x96")
DEFAULTS = RunConfig(batch_size=4, validation_tokens=32_768)


@dataclass(frozen=True)
class ScalingOptions(PairedOptions):
    """What `attnres scaling` asks for."""

    arms: Arms = ARMS
    config: Config = DEFAULTS
    sizes: tuple[str, ...] = SIZES
    """Models as LAYERSxDIM, at least three. Steps, heads, layers and dim below are replaced by theirs; a run is
    evaluated and saved after every tenth of its steps."""
    heads: int | None = None
    """Attention heads at every size. None: heads of 16 channels, of which a size's dim must then be a multiple."""
    tokens_per_parameter: float = 0.4
    """Tokens of a run over the parameters of its sublayers that a token meets; of the lab's own sublayers these are
    taken as 12 layers dim^2, a few percent less than they are."""
    grid: tuple[float, ...] = (1.0,)
    """Multiples of the learning rates (optimizer.lr and optimizer.adamw-lr together) that every arm tries at the two
    smallest sizes, and one beyond where the best lies at an edge, at most three times. Other sizes have the rate on the
    line through both."""
    time_steps: bool = False
    """When all is trained, time the steps of all arms in alternation, on one thread: the advantage in seconds is then
    of these times, and not of the runs' own, which other work on the machine blurs. With a finished record it only
    times."""


# ---------------------------------------------------------------------------------------------------------------- runs


def parse_size(text: str, heads: int | None = None, model: TransformerConfig = DEFAULTS.model) -> TransformerConfig:
    """The model at that size. model: all but its size.

    Raises UsageError if it is no size, or its dim does not divide into the heads.
    """
    match = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", text)
    multiple = 2 * heads if heads else HEAD_DIM  # rotary positions turn pairs of channels
    if not match or int(match[2]) % multiple:
        raise UsageError(f"size {text!r}: write LAYERSxDIM such as 16x64, dim a multiple of {multiple}")
    layers, dim = int(match[1]), int(match[2])
    return dataclasses.replace(model, layers=layers, dim=dim, heads=heads or dim // HEAD_DIM)


def active_parameters(model: TransformerConfig) -> int:
    """How many parameters of the sublayers a token meets: what the number of tokens is in proportion to.

    The lab's own have 12 dim^2 per layer, up to the width of the MLP, which is a multiple of 16: that is not counted,
    so that sizes stand in the same proportion at every width.
    """
    if (model.backbone, model.hidden, model.kv_heads) == ("lab", None, None):
        return 12 * model.layers * model.dim**2
    from attnres.model.counts import count_parameters

    counts = count_parameters(model)
    return counts.active_without_embedding - counts.connection


@dataclass(frozen=True)
class ScalingPlan:
    options: ScalingOptions
    sizes: Mapping[str, TransformerConfig]
    """Each size's model, the smallest first."""
    out: Path
    flops: Mapping[tuple[str, str], float] = dataclasses.field(default_factory=dict)
    """(arm, size) -> operations per token, once they are counted."""

    @property
    def cells(self) -> list[tuple[str, str]]:
        return [(arm, size) for size in self.sizes for arm in self.options.arms]

    @cached_property
    def parameters(self) -> dict[str, int]:
        return {size: active_parameters(model) for size, model in self.sizes.items()}

    def run(self, arm: str, at: str, rate: float, seed: int, part: str = "runs") -> Planned:
        """Its tokens are in proportion to parameters. Raises UsageError if there is no such arm at that size."""
        options, parameters = self.options, self.parameters[at]
        steps = max(1, math.ceil(options.tokens_per_parameter * parameters / options.config.tokens_per_step))
        own = {"steps": steps, "evaluate_every": max(1, steps // 10), "save_every": max(1, steps // 10), "keep": 1}
        chosen = options.run(arm, seed, rate, self.sizes[at], **own)
        folder = arm_folder(self.out, arm) / at / (f"lr-{rate:g}" if rate != 1 else "") / f"seed-{seed}"
        flops = self.flops.get((arm, at), 1.0)
        counted = {"parameters": parameters, "tokens": steps * chosen.tokens_per_step, "flops_per_token": flops}
        return Planned(arm, seed, chosen, folder, at, rate, part, cost=flops, measured=counted)

    def tuning(self, arm: str, at: str, rate: float) -> Planned:
        return self.run(arm, at, rate, self.options.config.seed + TUNING_SEED, "tuning")

    def reported(self, at: str, rates: Mapping[tuple[str, str], float]) -> list[Planned]:
        """Every arm at its own rate on all seeds."""
        arms, seeds = self.options.arms, self.options.paired_seeds
        return [self.run(arm, at, rates[arm, at], seed) for seed in seeds for arm in arms]


def plan(options: ScalingOptions, out: Path) -> ScalingPlan:
    """Raises UsageError on bad options, arms and sizes among them."""
    options = options.checked()
    if len(set(options.sizes)) < max(3, len(options.sizes)):
        raise UsageError("sizes: give at least three, each once; a line through two points has no error")
    if not options.tokens_per_parameter > 0:
        raise UsageError(f"tokens_per_parameter must be positive, not {options.tokens_per_parameter}")
    check_positive("grid", options.grid)
    if options.heads is not None:
        check_count("heads", options.heads)
    models = {size: parse_size(size, options.heads, options.config.model) for size in options.sizes}
    first, second, *_ = sizes = sorted(models, key=lambda size: active_parameters(models[size]))
    if len(options.grid) > 1 and active_parameters(models[first]) == active_parameters(models[second]):
        raise UsageError(
            f"sizes: with a grid the two smallest, {first} and {second}, must differ in parameters: rates go on along "
            "the line through both"
        )
    return ScalingPlan(options, {size: models[size] for size in sizes}, out)


def settings(plan: ScalingPlan) -> dict[str, Any]:
    """What all runs have in common: of the configuration all but what each size has of its own."""
    options, plain = plan.options, RunConfig()
    model = dataclasses.replace(
        options.config.model,
        **{name: getattr(plain.model, name) for name in ("layers", "dim", "heads", "connection")},
    )
    own = {name: getattr(plain, name) for name in ("steps", "evaluate_every", "save_every", "keep")}
    return {
        "config": config_to_json(dataclasses.replace(options.config, model=model, **own)),
        "grid": options.grid,
        "heads": options.heads,
        "tokens_per_parameter": options.tokens_per_parameter,
        "smallest_sizes": list(plan.sizes)[:2] if len(options.grid) > 1 else None,
    }


def run(plan: ScalingPlan, file: Path, progress: ProgressDisplay) -> SweepEnd:
    """Choose every arm's rates at the two smallest sizes, then go from the smallest size to the largest."""
    from attnres.model.flops import training_flops
    from attnres.train.folder import fit_vocabulary

    options = plan.options
    sweep = Sweep("scaling", options, settings(plan), file, plan.out, progress, sort=_parameters_of)
    fitting = {cell: fit_vocabulary(plan.run(*cell, 1.0, 0).config, sweep.corpus.vocab_size) for cell in plan.cells}
    plan = dataclasses.replace(plan, flops={cell: training_flops(config.model) for cell, config in fitting.items()})
    ones = dict.fromkeys(plan.cells, 1.0)
    certain = [run for size in plan.sizes for run in plan.reported(size, ones)]
    tuned = plan.cells[: 2 * len(options.arms)] if len(options.grid) > 1 else []
    certain += [plan.tuning(*cell, rate) for cell in tuned for rate in options.grid]
    sweep.announce(certain)
    rates = dict.fromkeys(plan.cells, next(iter(options.grid)))
    if tuned:
        rates = chosen_rates(plan, sweep.tune(plan.tuning, tuned, options.grid, MOST_BEYOND))
    sweep.leave_out("runs", {cell: [rate] for cell, rate in rates.items()})
    for size in plan.sizes:
        sweep.train(plan.reported(size, rates), size)
    if options.time_steps:
        sweep.find(step_times=time_steps(plan, sweep))
    return sweep.ended()


def _parameters_of(run: RunResult) -> int:
    return run.measured["parameters"]


def time_steps(plan: ScalingPlan, sweep: Sweep) -> dict[str, Any]:
    """The median seconds of a training step by size and arm, and where and when they were measured."""
    from attnres.lab.steptime import median_steps
    from attnres.ops.cpu import instruction_set
    from attnres.train.environment import environment

    seconds = {}
    for number_done, size in enumerate(plan.sizes):
        sweep.progress(number_done, len(plan.sizes), f"timing the steps of {size}")
        configs = {arm: plan.run(arm, size, 1.0, plan.options.config.seed).config for arm in plan.options.arms}
        seconds[size] = median_steps(configs, sweep.corpus)
    here = environment()
    machine = here["machine"] | {"threads": 1, "instruction set": instruction_set()}
    return {
        "seconds": seconds,
        "date": date.today().isoformat(),
        "commit": here["versions"]["commit"],
        "machine": machine,
    }


def chosen_rates(
    plan: ScalingPlan, tuned: Mapping[tuple[str, str], Sequence[RunResult]]
) -> dict[tuple[str, str], float]:
    """The multiple of every arm and size.

    At the two smallest sizes: the lowest point of the parabola through the best of the grid and its neighbours, loss
    over log multiple, or the best itself at an edge. From there on: the line through both, log multiple over log
    parameters, kept within what the arm tried.
    """
    smallest, second, *_ = plan.sizes

    def log_ratio(size: str) -> float:
        return math.log(plan.parameters[size] / plan.parameters[smallest])

    rates = {}
    for arm in plan.options.arms:
        of_sizes = [tuned[arm, smallest], tuned[arm, second]]
        low, high = (best({run.rate: run.loss for run in done(runs)}) for runs in of_sizes)
        tried = [run.rate for runs in of_sizes for run in runs]
        for size in plan.sizes:
            on_line = low * (high / low) ** (log_ratio(size) / log_ratio(second))
            rates[arm, size] = rounded(min(max(tried), max(min(tried), on_line)))
    return rates


def best(losses: Mapping[float, float]) -> float:
    """The multiple of lowest loss, between those that were tried; 1 where no run came to its end."""
    import numpy as np

    if not losses:
        return 1.0
    factors = sorted(losses)
    at = factors.index(min(losses, key=lambda factor: losses[factor]))
    if at in (0, len(factors) - 1):
        return factors[at]
    three = factors[at - 1 : at + 2]
    curvature, slope, _ = np.polyfit(np.log(three), [losses[factor] for factor in three], 2)
    return math.exp(-slope / (2 * curvature)) if curvature > 0 else factors[at]


# ---------------------------------------------------------------------------------------- what it says, tables, figure


def finding(record: Record) -> str:
    """How much compute each arm saves."""
    from attnres.analysis.powerlaw import fit_where_possible
    from attnres.lab import laws

    baseline = record.arms[0]
    fits, advantages = fit_where_possible(laws.final_points(record))
    if not advantages:
        return laws.why_no_advantage(baseline, fits)
    parts = [
        f"{one.factor:.2f} [{one.interval[0]:.2f}, {one.interval[1]:.2f}] times the compute of {one.arm}"
        for one in advantages
    ]
    return f"For the same loss {baseline} needs {', '.join(parts)}."


SECONDS = {
    True: " Seconds: median step times of all arms by turns.",
    False: " Seconds: median step times of these runs, which other work on the machine blurs.",
}
"""By whether the steps were timed by turns."""


def tables(record: Record) -> list[TextTable]:
    from attnres.analysis.powerlaw import fit_where_possible
    from attnres.lab import laws

    if not record.of():  # the rates are being chosen
        return []
    points = laws.final_points(record)
    law = laws.scaling_table(points, *fit_where_possible(points), "FLOPs", laws.diverged(record))
    if left_out := sum(run.done for run in record.of()) - sum(map(len, points.values())):
        note = f"{law.note} Finished runs left out, because an arm lacks their seed at their size: {left_out}."
        law = dataclasses.replace(law, note=note)
    return [law, along_table(record), *step_tables(record), *rate_tables(record)]


def along_table(record: Record) -> TextTable:
    """The lead and the compute advantage of every arm, size by size."""
    from attnres.analysis.powerlaw import advantages_at_sizes
    from attnres.lab import laws

    baseline, *arms = record.arms
    sizes = record.places()
    advantages = {name: advantages_at_sizes(points) for name, points in laws.axes_of(record).items()}
    rows = []
    for arm, size in ((arm, size) for arm in arms for size in sizes):
        lead = mean_text(laws.leads(record, arm, size), "+.4f")
        factors = [laws.factor_with_interval(of.get((arm, size))) for of in advantages.values()]
        rows.append((arm, size, lead, *factors))
    columns = ("connection", "size", f"difference to {baseline}", *(f"advantage in {name}" for name in advantages))
    note = (
        "Differences: nats per byte, mean over paired seeds ± standard error. Advantages: what the baseline needs over "
        "what the arm used for the arm's loss at that size, on the two fitted lines; 95% bootstrap intervals over the "
        "sizes."
    )
    if any(len(of) < len(rows) for of in advantages.values()):
        note += (
            " Blank: no run is done at that size, one of both lines is missing, or the 95% interval of "
            f"{baseline}'s exponent is not all above 0."
        )
    if "seconds" in advantages:
        note += SECONDS[laws.by_turns(record)]
    return TextTable("Along the range", columns, tuple(rows), note)


def step_tables(record: Record) -> list[TextTable]:
    """What a step takes, over the baseline's at the same size; nothing where steps were not timed by turns."""
    if not (timed := record.found.get("step_times")):
        return []
    baseline, *arms = record.arms
    seconds = timed["seconds"]
    rows = [(baseline, *(_milliseconds(of.get(baseline)) for of in seconds.values()))]
    for arm in arms:
        rows.append((arm, *(_over(of.get(arm), of.get(baseline)) for of in seconds.values())))
    machine = ", ".join(f"{name} {value}" for name, value in timed["machine"].items())
    note = (
        f"A training step on one thread, its median over 9 rounds or more in which all arms take turns; of the others, "
        f"times {baseline}'s. Measured on {timed['date']}, commit {timed['commit']}, {machine}."
    )
    return [TextTable("A step's time", ("connection", *seconds), tuple(rows), note)]


def _milliseconds(seconds: float | None) -> str:
    return f"{float(f'{1000 * seconds:.3g}'):g} ms" if seconds else ""


def _over(seconds: float | None, of_baseline: float | None) -> str:
    return f"{seconds / of_baseline:.2f}x" if seconds and of_baseline else ""


def rate_tables(record: Record) -> list[TextTable]:
    """The learning rates of every arm; nothing where none were chosen."""
    if not record.of(part="tuning"):
        return []
    factors, sizes = {(run.arm, run.at): run.rate for run in record.of()}, record.places()
    rows = []
    for arm in record.arms:
        rates = {size: factors.get((arm, size)) for size in sizes}
        tuning = {size: record.of(arm, size, "tuning") for size in sizes}
        rows.append((arm, *("" if rate is None else rate_text(rate, tuning[size]) for size, rate in rates.items())))
    note = (
        "Multiples of the default rates: at the two smallest sizes the lowest point of a parabola through a grid, on a "
        "seed of its own, which goes on where the best lies at its edge, and on the line through both from there on. * "
        "still at the edge of what was tried there: the best rate may lie beyond."
    )
    return [TextTable("Learning rates", ("connection", *sizes), tuple(rows), note)]


def pictures(record: Record) -> list[Plot]:
    """Losses and fits, differences to the baseline, and compute advantages; none where nothing is fitted."""
    from attnres.analysis.powerlaw import fit_where_possible
    from attnres.lab import laws
    from attnres.report.charts import Line, Lines, Plot

    points = laws.final_points(record)
    fits, advantages = fit_where_possible(points)
    if not fits:
        return []
    baseline, *arms = record.arms
    sizes = record.places()
    bars = []
    for arm in arms:
        of_sizes = [mean_and_error(laws.leads(record, arm, size)) for size in sizes]
        means = [of.get("mean", math.nan) for of in of_sizes]
        low, high = zip(*(of.get("interval") or (math.nan, math.nan) for of in of_sizes), strict=True)
        bars.append(Line(name=arm, x=range(len(sizes)), y=means, low=low, high=high, as_="bars"))
    charts = [
        laws.fits_chart(points, fits, "FLOPs", "validation loss (nats per byte)"),
        Lines(
            title=f"difference to {baseline} at each size (nats per byte ± standard error)",
            x_label="layers x width, the least parameters first",
            lines=bars,
            zero=True,
            ticks=list(enumerate(sizes)),
        ),
        laws.advantages_chart(advantages, laws.PAPER),
    ]
    alt = "losses with fits, differences, compute advantage"
    return [Plot(name="scaling", alt=alt, charts=charts, note=laws.NOTE)]


EXPERIMENT = Experiment(
    kind="scaling",
    position=2,
    options=ScalingOptions,
    plan=plan,
    run=run,
    title="Does it last with scale?",
    question=(
        "Loss against training compute for several sizes, tokens in proportion to parameters, fitted in log "
        "space. The compute advantage is how many times the compute the baseline needs for the same loss."
    ),
    finding=finding,
    tables=tables,
    pictures=pictures,
)
