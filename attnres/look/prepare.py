"""A pair of runs to look at."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

from attnres.train import RunConfig
from attnres.train.sweep import Job, JobState, require_done, run_jobs
from attnres.train.workers import default_workers

PAIR = ("block", "residual")
"""The first is what the page shows first: in a plain residual all weights are ones."""
PAIR_FOLDER = Path("runs") / "look"


def trained_pair(config: RunConfig, progress: Callable[[float, float, str], None]) -> list[Path]:
    """The runs of PAIR, trained unless they are there, with checkpoints close enough to walk through the training.

    progress: told (done, total, what).
    """
    config = dataclasses.replace(config, save_every=20, keep=8)
    models = {name: dataclasses.replace(config.model, connection=name) for name in PAIR}
    jobs = [Job(name, dataclasses.replace(config, model=models[name]), PAIR_FOLDER / name) for name in PAIR]

    def watch(states: list[JobState]) -> None:
        progress(sum(state.step for state in states), len(jobs) * config.steps, f"training {' and '.join(PAIR)}")

    require_done(run_jobs(jobs, default_workers(), watch))
    return [job.folder for job in jobs]
