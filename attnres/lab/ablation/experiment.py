"""The experiment, from its options to its section of the results page."""

from __future__ import annotations

from attnres.lab.ablation import figures, plan, run
from attnres.lab.ablation.claims import all_verdicts, finding
from attnres.lab.ablation.options import Options
from attnres.lab.ablation.record import AblationRecord
from attnres.lab.ablation.tables import ablation_tables
from attnres.lab.experiment import Experiment, Picture

EXPERIMENT = Experiment(
    command="ablate",
    position=1,
    options=Options,
    plan=plan.plan,
    run=run.run,
    record=AblationRecord,
    title="Which residual rule?",
    question=(
        "The paper's Table 4: every rule with its own learning rate, on the same seeds as the baseline. Negative "
        "differences are better. Runs that diverged are counted and left out of the means."
    ),
    finding=finding,
    claims=all_verdicts,
    tables=ablation_tables,
    pictures=(
        Picture("ablation", "difference to the baseline of every arm, beside the paper's", figures.differences),
        Picture("tuning", "loss of every arm at each learning rate of the grid", figures.tuning),
    ),
)
