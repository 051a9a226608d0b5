"""Train a plain model to its end, then go on with it and with a connection in it: is a retrofit worth it?

    attnres retrofit
    attnres retrofit residual block block@1 --fractions 0.2 --seeds 5
    attnres retrofit residual full rms-block --model.layers 16 --out runs/retrofit-16

Every seed has a plain model of transformers' layers. Each arm begins with its weights, with the options by which
nothing is lost where it has such (docs/TRANSFORMERS.md), and trains on for a share of its steps; the plain twin does so
without a connection. Each arm and share has learning rates of its own, chosen by the same rule on a seed that is not
reported: the best of a grid, which goes on where the best lies at its edge. All spend the operations of the plain
twin's steps, up to half a step. Runs are evaluated and saved at their start and end alone, whatever --evaluate-every
and --save-every say. Every run has a folder of its own; stop it with Ctrl-C or in any other way, and the same command
goes on; RECORD has the shares that are done. Ends with tables, OUT/results.html and OUT/figures/; `attnres report
RECORD` draws them from RECORD.
"""

from __future__ import annotations

from attnres.lab.experiment import Experiment, Picture
from attnres.lab.retrofit import figures, plan, run
from attnres.lab.retrofit.claims import finding, statements
from attnres.lab.retrofit.record import RetrofitRecord
from attnres.lab.retrofit.tables import retrofit_tables

EXPERIMENT = Experiment(
    command="retrofit",
    position=5,
    options=plan.Options,
    plan=plan.plan,
    run=run.run,
    record=RetrofitRecord,
    title="Is a retrofit worth it?",
    question=(
        "A model that was trained plain to its end trains on with a connection, and as a plain twin without. Every arm "
        "has its own learning rate. Negative differences are better."
    ),
    finding=finding,
    claims=statements,
    tables=retrofit_tables,
    pictures=(
        Picture("retrofit", "difference of every arm to the plain twin", figures.after_training_on),
        Picture("retrofit-rates", "loss of every arm at each learning rate that it tried", figures.rates),
    ),
)
