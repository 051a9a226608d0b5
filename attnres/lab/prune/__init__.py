"""Switch off each sublayer of trained models in turn and report the loss it adds: are layers redundant?

    attnres prune runs/compare/residual/seed-0 runs/compare/block/seed-0
    attnres prune --runs runs/dynamics
    attnres prune --runs runs/compare --tokens 65536 --out runs/prune-long

A sublayer that is switched off returns zero; all else stays, and nothing is trained again. For AttnRes that is the same
as taking the source out of the softmax: what mass a zero takes only scales the mixture, and sublayers begin with a
norm. Runs of one connection and several seeds make one row, and differences to the residual (or the first connection,
where there is none) are paired by seed. Runs that are not finished, or that ended no lower than they began, are marked
and left out. What is measured stays in prune.json in every run's folder, so after Ctrl-C the same command goes on.
Ends with tables, OUT/results.html and OUT/figures/; `attnres report RECORD` draws them again from RECORD.
"""

from __future__ import annotations

from attnres.lab.experiment import Experiment, Picture
from attnres.lab.prune import figures, run
from attnres.lab.prune.claims import finding, prune_statements
from attnres.lab.prune.record import PruneRecord
from attnres.lab.prune.tables import prune_tables
from attnres.lab.trained import Options, configs, plan

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
