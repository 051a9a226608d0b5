"""The experiment, from its options to its section of the results page."""

from __future__ import annotations

from attnres.lab.experiment import Experiment, Picture
from attnres.lab.prune import figures, run
from attnres.lab.prune.claims import finding, prune_statements
from attnres.lab.prune.options import Options
from attnres.lab.prune.record import PruneRecord
from attnres.lab.prune.tables import prune_tables
from attnres.lab.trained import configs, plan

EXPERIMENT = Experiment(
    command="prune",
    position=4,
    options=Options,
    plan=plan,
    run=run.run,
    runs=configs,
    record=PruneRecord,
    title="What is a sublayer worth?",
    question="Each sublayer left out in turn: the validation loss that this adds.",
    finding=finding,
    claims=prune_statements,
    tables=prune_tables,
    pictures=(Picture("prune", "loss added by leaving out each sublayer", figures.costs),),
)
