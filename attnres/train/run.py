"""A run that was trained, for generate and look."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from attnres.data import Tokenizer
from attnres.errors import UsageError
from attnres.model import Transformer
from attnres.train.checkpoint import Checkpoint, read_chosen
from attnres.train.config import RunConfig
from attnres.train.folder import TOKENIZER, RunFolder


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
    """Load a run, finished or not.

    Args:
        folder: the run folder.
        best: load the checkpoint of lowest validation loss, not the newest. A damaged one is skipped, with a warning.
        step: load the checkpoint of that step.

    Raises:
        UsageError: the folder is not a run, or has no undamaged checkpoint, or none of that step.
    """
    run = RunFolder(folder)
    config = run.config()
    model = Transformer(config.model)

    def choose() -> Checkpoint | None:
        if step is not None:
            return run.checkpoints.of_step(step)
        return run.checkpoints.best_good() if best else run.checkpoints.newest_good()

    def load(checkpoint: Checkpoint) -> int:
        checkpoint.require(config.model, model.state_dict())
        model.load_state_dict(checkpoint.model())
        return checkpoint.step

    loaded = read_chosen(choose, load)
    if loaded is None:
        raise UsageError(f"{run.path}: the run has saved no checkpoint yet; train it first")
    return Run(run.path, config, model.eval(), _own_tokenizer(run, config.model.vocab_size), loaded)


def _own_tokenizer(run: RunFolder, vocab_size: int) -> Tokenizer:
    """The run's tokenizer. Raises UsageError where it has ids that the model has not."""
    tokenizer = run.tokenizer()
    if tokenizer.vocab_size > vocab_size:
        raise UsageError(
            f"{run.path / TOKENIZER} is another model's: it has {tokenizer.vocab_size} ids, and the run {vocab_size}; "
            "without it the command that trained the run writes it anew"
        )
    return tokenizer
