"""Train several residual connections side by side and show what depth does in each.

By default it trains four connections: the plain residual, the embedding fed back in (x0), Block and Full Attention
Residuals. Each has five seeds and reads the Python sources of torch, byte by byte:

    attnres compare
    attnres compare --quick
    attnres compare residual full hc mhc --seeds 5
    attnres compare residual block block:block_size=8 full:query=input,heads=4
    attnres compare --data.dataset sympy --data.tokenizer bpe:2048 --out runs/sympy
    attnres compare --model.embedding-std 0.02 --out runs/small-embedding
    attnres compare residual block full --recipe recipes/kimi_linear.py --seeds 2

The first connection is the baseline. Runs of one seed share initial weights and the order of the data, so differences
are paired. Every run is a one-thread process with its own folder. If you stop the command with Ctrl-C, or in any other
way, the same command continues it. It ends with tables, OUT/comparison.json and OUT/results.html.
"""

from __future__ import annotations

import dataclasses
import shlex
import shutil
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import FlagCreatePairsOff

from attnres.analysis.comparison import SIGNIFICANCE, Comparison, compare_arms, finding, p_text
from attnres.lab.engine import ProgressDisplay, Sweep, SweepEnd
from attnres.lab.experiment import Experiment
from attnres.lab.judge import mean_text
from attnres.lab.options import Arms, Config, PairedOptions, PairedPlan, paired_plan
from attnres.lab.runs import Record
from attnres.texttable import TextTable, number
from attnres.train import RunConfig, config_to_json

if TYPE_CHECKING:
    from attnres.analysis import DepthProfile
    from attnres.report.charts import Plot

ARMS = ("residual", "x0", "block", "full")
DEFAULTS = RunConfig(steps=160, batch_size=4, evaluate_every=40, save_every=80, validation_tokens=32_768)
QUICK = dataclasses.replace(DEFAULTS, steps=48, evaluate_every=16, validation_tokens=16_384)
METHOD = (
    "Difference: mean over paired seeds ± standard error. p: two-sided paired t-test, Holm-corrected over the "
    f"connections; decided where p < {SIGNIFICANCE}. Step time and peak memory: over the baseline's, median "
    "over paired seeds [lowest, highest]."
)


@dataclass(frozen=True)
class ComparisonOptions(PairedOptions):
    """What `attnres compare` asks for."""

    arms: Arms = ARMS
    seeds: int = 5
    """Paired seeds: seed, seed + 1, .."""
    config: Config = DEFAULTS
    quick: Annotated[bool, FlagCreatePairsOff] = False
    """A small comparison, in about two minutes; it decides nothing."""


def run(plan: PairedPlan, file: Path, progress: ProgressDisplay) -> SweepEnd:
    """Train every connection on every seed, and read the depth of one run of each."""
    options, config = plan.options, plan.options.config
    settings = {"config": config_to_json(dataclasses.replace(config, seed=0))}
    sweep = Sweep("comparison", options, settings, file, plan.out, progress)
    sweep.announce(plan.runs)
    sweep.train(plan.runs)
    _read_depth(plan, sweep)
    ended = sweep.ended()
    first = next(one.folder for one in reversed(plan.runs) if one.seed == config.seed)
    return ended if ended.failed else dataclasses.replace(ended, notes=[_what_next(first)])


def _read_depth(plan: PairedPlan, sweep: Sweep) -> None:
    """Find what depth does in the first compared run of each connection, unless it is known."""
    from attnres.analysis import depth_profile
    from attnres.report.runs import validation_tokens
    from attnres.train import load_run

    first = {arm: min(runs) for arm, runs in sweep.record().compared().items() if runs}
    depth = dict(sweep.found.get("depth", {}))
    missing = {arm: seed for arm, seed in first.items() if depth.get(arm, {}).get("seed") != seed}
    folders = {one.arm: one.folder for one in plan.runs if missing.get(one.arm) == one.seed}
    tokens = validation_tokens(sweep.corpus, plan.options.config)
    with sweep.progress.during("reading the depth of every connection") as tell:
        for number, (arm, folder) in enumerate(folders.items(), 1):
            if folder.exists():  # where a record alone goes on it is not
                tell(f"reading the depth of {arm}, {number} of {len(folders)}")
                profile = depth_profile(load_run(folder).model, tokens)
                depth[arm] = {"seed": first[arm], **profile.to_json()}
    if folders:
        sweep.find(depth=depth)


def _what_next(run: Path) -> str:
    """The next commands to try. `make demo` runs in an environment that the shell does not have."""
    attnres = "attnres" if shutil.which("attnres") else f"{shlex.quote(sys.executable)} -m attnres"
    folder = shlex.quote(str(run))
    return f"""
Open the report in a browser. Then try:
  {attnres} look {folder}                              (the same model live: change what depth reads)
  {attnres} generate {folder} --prompt "def read("     (what it writes)
  {attnres} compare residual x0 block full --seeds 5   (five paired seeds, about nine minutes)"""


def rows(record: Record) -> list[Comparison]:
    return compare_arms(record.compared(), baseline=record.arms[0])


def profiles(record: Record) -> dict[str, DepthProfile]:
    """What depth does, of the connections where it was read."""
    from attnres.analysis import DepthProfile

    depth = {arm: dict(of) for arm, of in record.found.get("depth", {}).items() if arm in record.arms}
    return {arm: DepthProfile.from_json(of) for arm, of in depth.items()}


def tables(record: Record) -> list[TextTable]:
    """The result, one connection per row, the differences seed by seed, and the sinks; of what there is."""
    from attnres.report.write import sink_table

    found = rows(record)
    sinks = [sink_table(of)] if (of := profiles(record)) else []
    if not any(row.losses for row in found):
        return sinks
    baseline, config = record.arms[0], record.config
    tokens = config["batch_size"] * config["accumulate"] * config["model"]["context"]
    results = TextTable(
        "Result",
        (
            "connection",
            f"difference to {baseline}",  # first, because a narrow page shows the first columns
            "p",
            "validation nats per byte",
            "bits per byte",
            "step time",
            "peak memory",
            "seeds",
        ),
        tuple(map(_result, found)),
        f"{config['model']['layers']} layers of width {config['model']['dim']}, {config['steps']} steps of {tokens:,} "
        f"tokens. {METHOD}",
    )
    seeds = sorted({seed for row in found for seed in row.differences})
    by_seed = TextTable(
        "Seed by seed",
        (f"difference to {baseline}", *(f"seed {seed}" for seed in seeds)),
        tuple((row.arm, *(number(row.differences.get(seed), "+.4f") for seed in seeds)) for row in found[1:]),
    )
    return [results, *([by_seed] if len(seeds) > 1 else []), *sinks]


def _result(row: Comparison) -> tuple[str, ...]:
    from attnres.data import in_bits

    loss = row.validation_loss
    return (
        row.arm,
        mean_text(list(row.differences.values()), "+.4f"),
        p_text(row.p_value),
        number(loss, ".4f"),
        number(None if loss is None else in_bits(loss), ".4f"),
        *map(_costs, (row.step_times, row.peak_memories)),
        str(len(row.losses)),
    )


def _costs(ratios: Sequence[float]) -> str:
    """Of a single seed nothing: it may have met other work on the machine."""
    several = len(ratios) > 1
    return f"{statistics.median(ratios):.2f}x [{min(ratios):.2f}, {max(ratios):.2f}]" if several else ""


def pictures(record: Record) -> list[Plot]:
    from attnres.report.write import depth_pictures, loss_curves

    curves = {arm: {seed: run.curve for seed, run in runs.items()} for arm, runs in record.compared().items()}
    return [*loss_curves(curves), *depth_pictures(profiles(record))]


EXPERIMENT = Experiment(
    kind="comparison",
    position=0,
    options=ComparisonOptions,
    quick=ComparisonOptions(seeds=2, config=QUICK),
    plan=paired_plan,
    run=run,
    title="Residual connections side by side",
    question=(
        "A transformer with L sublayers has L + 1 sites where depth is read (the last is the readout) and L + 1 "
        "sources (the embedding, then each sublayer's output); a connection is the rule that says how much of each "
        "source each site reads. Layers count from 0."
    ),
    finding=lambda record: f"Validation loss in nats per byte: {finding(rows(record))}.",
    tables=tables,
    pictures=pictures,
)
