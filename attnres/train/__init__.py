"""Training: the loop, optimizers by role, schedule, checkpoints, run folders."""

from typing import TYPE_CHECKING

from attnres.lazy import on_first_use

if TYPE_CHECKING:
    from attnres.train.jsonconfig import config_from_json, config_to_json
    from attnres.train.loop import ONE_PROCESS, Interrupted, RunStopped, train
    from attnres.train.metrics import read_metrics
    from attnres.train.recipe import load_recipe
    from attnres.train.run import Run, load_run
    from attnres.train.runconfig import OptimizerConfig, RunConfig

__all__ = [
    "ONE_PROCESS",
    "Interrupted",
    "OptimizerConfig",
    "Run",
    "RunConfig",
    "RunStopped",
    "config_from_json",
    "config_to_json",
    "load_recipe",
    "load_run",
    "read_metrics",
    "train",
]

__getattr__ = on_first_use(__name__)
