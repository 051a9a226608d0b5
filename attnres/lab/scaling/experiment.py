"""The experiment, from its options to its section of the results page."""

from __future__ import annotations

from attnres.lab.experiment import Experiment, Picture
from attnres.lab.scaling import figures, plan, run
from attnres.lab.scaling.fit import finding
from attnres.lab.scaling.options import Options
from attnres.lab.scaling.record import ScalingRecord
from attnres.lab.scaling.tables import scaling_tables

EXPERIMENT = Experiment(
    command="scaling",
    position=2,
    options=Options,
    plan=plan.plan,
    run=run.run,
    record=ScalingRecord,
    title="Does it last with scale?",
    question=(
        "Loss against training compute for several sizes, tokens in proportion to parameters, fitted in log "
        "space. The compute advantage is how many times the compute the baseline needs for the same loss."
    ),
    finding=finding,
    tables=scaling_tables,
    pictures=(
        Picture("scaling", "losses with fits, differences, compute advantage, loss against size", figures.scaling_law),
    ),
)
