"""Ask trained models of bytes: the next byte, which bracket closes, indentation, names, copies: what is a lead worth?

    attnres probe --runs runs/dynamics
    attnres probe runs/compare/residual/seed-0 runs/compare/block/seed-0
    attnres probe --runs runs/ladder-16 --tokens 262144 --out runs/probe-ladder

Asks on held-out files for the next byte; for the kind of bracket that closes the innermost open one; whether a line's
indentation goes on; for names that were last seen half a window ago; and for text and random letters that come again in
one window. Runs of one connection and several seeds make one row, and differences to the residual (or the first
connection, where there is none) are paired by seed. Runs that are not finished, or that ended no lower than they began,
are marked and left out. Ends with tables, OUT/results.html and OUT/figures/; `attnres report RECORD` draws them from
RECORD.
"""

from __future__ import annotations

from attnres.lab.experiment import Experiment, Picture
from attnres.lab.probes import figures, run
from attnres.lab.probes.claims import finding, statements
from attnres.lab.probes.record import ProbesRecord
from attnres.lab.probes.tables import probes_tables
from attnres.lab.trained import configs

EXPERIMENT = Experiment(
    command="probe",
    position=6,
    options=run.ProbeOptions,
    plan=run.plan,
    run=run.run,
    runs=configs,
    kept=False,
    record=ProbesRecord,
    title="What is a lead worth?",
    question="How often models are right, on held-out text and on texts that are made of it.",
    finding=finding,
    claims=statements,
    tables=probes_tables,
    pictures=(Picture("probes", "share of right answers over the baseline's, task by task", figures.gained),),
)
