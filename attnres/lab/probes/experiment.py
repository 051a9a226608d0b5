"""The experiment, from its options to its section of the results page."""

from __future__ import annotations

from attnres.lab.experiment import Experiment, Picture
from attnres.lab.probes import figures, run
from attnres.lab.probes.claims import finding, statements
from attnres.lab.probes.options import Options
from attnres.lab.probes.record import ProbesRecord
from attnres.lab.probes.tables import probes_tables
from attnres.lab.trained import configs

EXPERIMENT = Experiment(
    command="probe",
    position=6,
    options=Options,
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
