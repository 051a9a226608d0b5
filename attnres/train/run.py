"""A trained run, for `generate` and `look`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from attnres.data import Tokenizer
from attnres.errors import UsageError
from attnres.model import Transformer
from attnres.train.folder import RunFolder
from attnres.train.runconfig import RunConfig


@dataclass(frozen=True)
class Run:
    """What a run folder holds, loaded."""

    folder: Path
    config: RunConfig
    model: Transformer
    """On the CPU, in eval mode."""
    tokenizer: Tokenizer
    step: int
    """How many updates the model has had."""


def load_run(folder: str | Path, best: bool = False, step: int | None = None) -> Run:
    """Load a run, finished or not: its newest checkpoint, its best one, or that of a step.

    A damaged checkpoint is skipped with a warning. Raises UsageError if the folder is no run or has no such checkpoint.
    """
    run = RunFolder(folder)
    config = run.config()
    checkpoints = run.checkpoints
    if step is not None:
        checkpoint = checkpoints.of_step(step)
    else:
        checkpoint = checkpoints.best_good() if best else checkpoints.newest_good()
    if checkpoint is None:
        raise UsageError(f"{run.path}: the run has saved no checkpoint yet; train it first")
    model = Transformer(config.model)
    model.load_state_dict(checkpoint.model())
    return Run(run.path, config, model.eval(), run.tokenizer(), checkpoint.step)
