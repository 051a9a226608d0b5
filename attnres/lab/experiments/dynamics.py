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

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnres.lab.engine import Planned, ProgressDisplay, Sweep, SweepEnd
from attnres.lab.experiment import Experiment, of_module
from attnres.lab.options import Arms, Config, PairedOptions, PairedPlan, paired_plan
from attnres.train import RunConfig, config_to_json

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
    sweep = Sweep("dynamics", options.arms, settings, config, options.workers, file, plan.out, progress, measure)
    tokens = validation_tokens(sweep.corpus, config)
    sweep.announce(plan.runs)
    sweep.train(plan.runs)
    for one in plan.runs:
        prune(one.folder, config.keep)
    return sweep.ended()


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
    finding=of_module("attnres.lab.depth", "finding"),
    claims=of_module("attnres.lab.depth", "statements"),
    tables=of_module("attnres.lab.depth", "dynamics_tables"),
    pictures=of_module("attnres.lab.depth", "pictures"),
)
