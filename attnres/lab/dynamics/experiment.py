"""The experiment, from its options to its section of the results page."""

from __future__ import annotations

from attnres.lab.dynamics import figures, run
from attnres.lab.dynamics.claims import finding, statements
from attnres.lab.dynamics.options import Options
from attnres.lab.dynamics.record import DynamicsRecord
from attnres.lab.dynamics.tables import dynamics_tables
from attnres.lab.experiment import Experiment, Picture

EXPERIMENT = Experiment(
    command="dynamics",
    position=3,
    options=Options,
    plan=run.plan,
    run=run.run,
    runs=lambda plan: {(one.arm, one.seed): one.job.config for one in plan.runs},
    record=DynamicsRecord,
    title="What does depth do?",
    question=(
        "Magnitudes, gradients, updates and depth weights over depth and over training, and the ranks of the "
        "depth mixing matrix, with the paper's claims tested over paired seeds."
    ),
    finding=finding,
    claims=statements,
    tables=dynamics_tables,
    pictures=(
        Picture("dynamics-depth", "magnitudes over depth at the last step", figures.where_done(figures.depth)),
        Picture("dynamics-weights", "depth weights of every connection", figures.where_done(figures.weights)),
        Picture("dynamics-training", "magnitudes and entropy over training", figures.where_done(figures.training)),
        Picture("dynamics-ranks", "ranks of the depth mixing matrix", figures.where_done(figures.ranks)),
        Picture("dynamics-matrices", "depth mixing matrices", figures.where_done(figures.matrices)),
    ),
)
