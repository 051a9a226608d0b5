"""What depth does over training: magnitudes, gradients, updates, sinks and entropy, for every connection.

    attnres dynamics
    attnres dynamics residual block full --seeds 5 --model.layers 24 --model.dim 48
    attnres dynamics residual block:block_size=8 --steps 400 --save-every 50 --out runs/s8

Trains every connection on the same seeds, then profiles each run before its first step and at every --save-every
steps on fixed validation text. The first connection is the baseline. Says of each of the paper's claims (what sublayers
read grows or is bounded; gradients are even; sinks; the embedding's share) whether the runs show it, refute it, or do
not decide, by a test over paired seeds.

All checkpoints stay on the disk until the runs are profiled (12 MB each at the default size); what remains then is what
--keep says. Those of runs that were in OUT already all stay. Stop it with Ctrl-C or in any other way, and the same
command goes on. A run that diverges is kept, marked, and left out of the means. Ends with tables, OUT/results.html and
OUT/figures/; `attnres report RECORD` draws them again from RECORD.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnres.lab.engine import Planned, ProgressDisplay, Sweep, SweepEnd
from attnres.lab.experiment import Experiment
from attnres.lab.judge import DECIDED, NEGLIGIBLE, Statement, judged, mean_text, paired, statement_tables, summary
from attnres.lab.options import Arms, Config, PairedOptions, PairedPlan, paired_plan
from attnres.lab.runs import Record, RunResult, done, runs_text
from attnres.texttable import TextTable
from attnres.train import RunConfig, config_to_json

if TYPE_CHECKING:
    from attnres.report.charts import Plot

ARMS = ("residual", "x0", "block", "full", "hc", "mhc")
DEFAULTS = RunConfig(steps=160, batch_size=4, evaluate_every=40, save_every=20, validation_tokens=32_768)


@dataclass(frozen=True)
class DynamicsOptions(PairedOptions):
    """What `attnres dynamics` asks for."""

    arms: Arms = ARMS
    config: Config = DEFAULTS


def plan(options: DynamicsOptions, out: Path) -> PairedPlan:
    """Raises UsageError on bad options, arms among them."""
    from attnres.lab.profiles import EVERY

    return paired_plan(options, out, keep=EVERY)


def moments(config: RunConfig) -> list[int]:
    """The steps that are profiled: before the first one, every `save_every`, and the last."""
    return [*range(0, config.steps, config.save_every), config.steps]


def run(plan: PairedPlan, file: Path, progress: ProgressDisplay) -> SweepEnd:
    """Train every connection with its checkpoints kept, and measure each run at several moments."""
    from attnres.lab.profiles import profile, prune
    from attnres.report.runs import validation_tokens

    options, config = plan.options, plan.options.config
    steps = moments(config)

    def measure(one: Planned) -> Mapping[str, Any]:
        return profile(one.folder, tokens, steps)

    settings = {"config": config_to_json(config), "profiled_steps": steps}
    sweep = Sweep("dynamics", options, settings, file, plan.out, progress, measure)
    tokens = validation_tokens(sweep.corpus, config)
    sweep.announce(plan.runs)
    sweep.train(plan.runs)
    for one in plan.runs:
        prune(one.folder, config.keep)
    return sweep.ended()


# ------------------------------------------------------------------------------------------------------- what it says

# h is what a sublayer reads, y what it returns. Magnitudes are compared by natural logarithms, so 0.01 is one percent.
# Runs that diverged are left out. lab/judge.py has the rule that decides.

LEAST_SHARE = 1e-12
"""Less has no logarithm to compare."""
ROUNDED_OFF = 5e-4
"""What records of four digits, as they once were, round off at most, over the number itself."""

Measure = Callable[[RunResult], float]
"""What reads a number off one run of the record."""


def log_growth(series: Sequence[float]) -> float:
    """Growth over the whole series: the least-squares slope of its logarithm, times its length less one."""
    return statistics.linear_regression(range(len(series)), list(map(math.log, series))).slope * (len(series) - 1)


def unevenness(series: Sequence[float]) -> float:
    """The coefficient of variation: standard deviation over mean."""
    return statistics.pstdev(series) / statistics.fmean(series)


def last(run: RunResult) -> Mapping[str, Any]:
    """What was measured of the run at its last step."""
    return run.measured["moments"][-1]


def inner_inputs(run: RunResult) -> Sequence[float]:
    """The RMS of h at sites 1 .. L-1: the first reads the embedding alone."""
    return last(run)["input_rms"][1:-1]


def input_growth(run: RunResult) -> float:
    return log_growth(inner_inputs(run))


def output_growth(run: RunResult) -> float:
    return log_growth(last(run)["output_rms"][1:])


def gradient_unevenness(run: RunResult) -> float:
    """Over the L sublayers' outputs; the embedding stands apart."""
    return unevenness(last(run)["gradient_rms"][1:])


def update_unevenness(run: RunResult) -> float:
    return unevenness(last(run)["update"])


def embedding_excess(run: RunResult, moment: int = -1) -> float:
    """ln of the embedding's mean share over its share if every site divided equally; 0 where four digits agree."""
    equal = statistics.fmean(1 / sources for sources in range(1, len(run.measured["source_share"]) + 1))
    share = run.measured["source_share"][0] if moment == -1 else run.measured["moments"][moment]["embedding_share"]
    # What four digits round off is the same in every seed, and a test without spread would find it significant.
    return 0.0 if math.isclose(share, equal, rel_tol=ROUNDED_OFF) else math.log(max(share, LEAST_SHARE) / equal)


def relative_entropy(moment: Mapping[str, Any]) -> float:
    """Entropy of the depth weights over log(l + 1), mean over sites 1 .. L: 1 where all sources share equally."""
    return statistics.fmean(entropy / math.log(site + 1) for site, entropy in enumerate(moment["entropy"]) if site)


def sharpening(run: RunResult) -> float:
    """The change of `relative_entropy` from before the first step to the last."""
    return relative_entropy(last(run)) - relative_entropy(run.measured["moments"][0])


def claims(record: Record) -> list[Statement]:
    """Every claim on every connection that has runs."""
    arms = {arm: {run.seed: run for run in done(record.of(arm))} for arm in record.arms}
    arms = {name: runs for name, runs in arms.items() if runs}
    baseline = record.arms[0]

    def each(measure: Measure) -> dict[str, list[float]]:
        return {arm: [measure(run) for run in runs.values()] for arm, runs in arms.items()}

    untrained = each(lambda run: embedding_excess(run, moment=0))
    details = {arm: f"{statistics.fmean(excess):+z.3f} untrained" for arm, excess in untrained.items()}
    return [
        *judged("h grows with depth", 1, each(input_growth)),
        *judged("y grows with depth", 1, each(output_growth)),
        *judged(f"h grows less than in {baseline}", -1, paired(arms, baseline, input_growth)),
        *judged(f"y grows less than in {baseline}", -1, paired(arms, baseline, output_growth)),
        *judged(f"gradients more even than in {baseline}", -1, paired(arms, baseline, gradient_unevenness)),
        *judged(f"updates more even than in {baseline}", -1, paired(arms, baseline, update_unevenness)),
        *judged("depth weights sharpen in training", -1, each(sharpening)),
        *judged("the embedding is a sink", 1, each(embedding_excess), details),
    ]


def finding(record: Record) -> str:
    """What was decided of what sublayers read; of all else where nothing was."""
    return summary(claims(record), first=lambda claim: claim.startswith("h "))


def tables(record: Record) -> list[TextTable]:
    """Magnitudes and depth weights of every connection, then what they show."""
    magnitudes: dict[str, tuple[Measure, str]] = {
        "loss": (lambda run: run.loss, ".4f"),
        "h: growth": (input_growth, "+.2f"),
        "h: max/min": (lambda run: math.log(max(inner_inputs(run)) / min(inner_inputs(run))), ".2f"),
        "y: growth": (output_growth, "+.2f"),
        "gradient: spread": (gradient_unevenness, ".3f"),
        "update: spread": (update_unevenness, ".3f"),
    }
    weights: dict[str, tuple[Measure, str] | tuple[Measure, str, str]] = {
        "entropy, untrained": (lambda run: relative_entropy(run.measured["moments"][0]), ".3f"),
        "trained": (lambda run: relative_entropy(last(run)), ".3f"),
        "embedding": (lambda run: math.exp(embedding_excess(run)), ".2f", "x"),
    }
    runs = {arm: done(record.of(arm)) for arm in record.arms}

    def cells(arm: str, measures: Mapping[str, tuple[Any, ...]]) -> list[str]:
        return [mean_text([measure(run) for run in runs[arm]], *form) for measure, *form in measures.values()]

    sizes = (
        "mean ± standard error over seeds, at the last step. h: RMS of what sites 1 .. L-1 read; y: RMS of the "
        "sublayers' outputs; growth over the whole depth and max/min as natural logarithms. spread: standard deviation "
        "over mean, of the gradient at each output and of each sublayer's update."
    )
    shares = (
        "entropy of |M| over sources, over that of equal shares. embedding: its mean share over that of equal shares."
    )
    decided = (
        f"{DECIDED} and the value is at least {NEGLIGIBLE} in size; refuted too where its 95% interval lies within "
        "that. Values are natural logarithms, or differences of spread or relative entropy."
    )
    first = [(arm, *cells(arm, magnitudes), runs_text(record.of(arm))) for arm in record.arms]
    second = [(arm, *cells(arm, weights)) for arm in record.arms]
    return [
        TextTable("Magnitudes over depth", ("connection", *magnitudes, "runs"), tuple(first), sizes),
        TextTable("Depth weights", ("connection", *weights), tuple(second), shares),
        *statement_tables("What this shows", claims(record), decided),
    ]


def pictures(record: Record) -> list[Plot]:
    """What depth does at the last step and over training; none of a record without a run that came to its end."""
    import numpy as np

    from attnres.analysis.profile import sublayer_names
    from attnres.report.charts import Lines, Plot, band, over_depth
    from attnres.report.write import ALONG, BANDS, along_depth

    arms = {arm: runs for arm in record.arms if (runs := done(record.of(arm)))}
    if not arms:
        return []
    first = next(iter(arms.values()))[0]  # all runs have as many numbers, at the same steps
    names = sublayer_names(len(first.measured["source_share"]) - 1)
    steps = [moment["step"] for moment in first.measured["moments"]]

    def over_training(title: str, measure: Callable[[Mapping[str, Any]], float]) -> Lines:
        numbers = {arm: [list(map(measure, run.measured["moments"])) for run in runs] for arm, runs in arms.items()}
        lines = [band(arm, np.array(of), steps) for arm, of in numbers.items()]
        return Lines(title=title, x_label="step", lines=lines)

    ends = {arm: [{**last(run), **run.measured} for run in runs] for arm, runs in arms.items()}
    updates = [band(arm, np.array([end["update"] for end in of])) for arm, of in ends.items()]
    charts = [
        *along_depth(ends, names),
        over_depth("update of each sublayer (relative, per step)", "sublayer", names, updates),
        over_training("entropy of depth weights over log(l + 1)", relative_entropy),
        over_training("mean share of the embedding", lambda moment: moment["embedding_share"]),
    ]
    alt = "magnitudes and shares over depth at the last step, depth weights over training"
    note = f"After {steps[-1]} steps. {BANDS}"
    return [Plot(name="dynamics-depth", alt=alt, charts=charts, note=note, how=ALONG, columns=3)]


EXPERIMENT = Experiment(
    kind="dynamics",
    position=3,
    options=DynamicsOptions,
    plan=plan,
    run=run,
    title="What does depth do?",
    question=(
        "Magnitudes, gradients, updates and depth weights over depth and over training, with the paper's claims "
        "tested over paired seeds."
    ),
    finding=finding,
    claims=claims,
    tables=tables,
    pictures=pictures,
)
