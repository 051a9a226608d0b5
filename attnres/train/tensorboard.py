"""Metrics as TensorBoard scalars (extra: tensorboard)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from attnres.errors import UsageError, install_command


@contextmanager
def tensorboard_writer(folder: Path, step: int) -> Iterator[Callable[[dict[str, Any]], None]]:
    """A listener for `train` that writes under folder/tensorboard; what an earlier run wrote after `step` is hidden."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise UsageError(f"TensorBoard is not installed: {install_command('tensorboard')}") from error
    writer = SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1)

    def listen(record: dict[str, Any]) -> None:
        if record["kind"] == "eval":
            writer.add_scalar("loss/validation", record["loss"], record["step"])
        elif record["kind"] == "train":
            writer.add_scalar("loss/train", record["loss"], record["step"])
            for name in ("lr", "grad_norm", "tokens_per_second"):
                writer.add_scalar(name, record[name], record["step"])

    try:
        yield listen
    finally:
        writer.close()
