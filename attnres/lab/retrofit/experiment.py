"""The experiment, from its options to its section of the results page."""

from __future__ import annotations

from attnres.lab.experiment import Experiment, Picture
from attnres.lab.retrofit import figures, plan, run
from attnres.lab.retrofit.claims import finding, statements
from attnres.lab.retrofit.options import Options
from attnres.lab.retrofit.record import RetrofitRecord
from attnres.lab.retrofit.tables import retrofit_tables

EXPERIMENT = Experiment(
    command="retrofit",
    position=5,
    options=Options,
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
