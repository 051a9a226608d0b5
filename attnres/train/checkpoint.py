"""Checkpoints: written atomically, checked by SHA-256, the newest few and the best one kept.

checkpoints/step-00000400/model.safetensors        the weights
                          optimizer.safetensors    optimizer state and random-number state
                          state.json               step, position in the data, validation loss; of the last step
                                                   the run's result
                          checksums.json           of the three: the SHA-256 of the SHA-256 of their 64 MB blocks
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

from attnres.errors import UsageError
from attnres.files import named_errors, new_folder, partial_folder, remove_folder, remove_partial

log = logging.getLogger(__name__)

Tensors = Mapping[str, Tensor]

MODEL, OPTIMIZER, STATE, CHECKSUMS = "model.safetensors", "optimizer.safetensors", "state.json", "checksums.json"
FILES = (MODEL, OPTIMIZER, STATE)
NAME = r"step-\d{8,}"
"""The names of checkpoints' folders, as a regular expression."""
BLOCK = 1 << 26
"""Bytes of a file that are hashed at a time."""


@dataclass(frozen=True)
class Checkpoint:
    """One folder on the disk, which may be damaged."""

    path: Path

    @property
    def step(self) -> int:
        return int(self.path.name.removeprefix("step-"))

    def model(self) -> dict[str, Tensor]:
        """The weights."""
        return load_file(self.path / MODEL)

    def optimizer(self) -> dict[str, Tensor]:
        """Optimizer and random-number state."""
        return load_file(self.path / OPTIMIZER)

    def state(self) -> dict[str, Any]:
        """Step, position in the data, validation loss."""
        return json.loads((self.path / STATE).read_text(encoding="utf-8"))

    def damage(self) -> str | None:
        """What is wrong with the files, or None if they are as they were written."""
        try:
            expected = json.loads((self.path / CHECKSUMS).read_text(encoding="utf-8"))
            wrong = next((name for name in FILES if _checksum(self.path / name) != expected[name]), None)
        except (OSError, ValueError, KeyError, TypeError) as error:
            return f"{type(error).__name__}: {error}"
        return wrong and f"{wrong} is not as it was written"

    def weights_checksum(self) -> str:
        """By which the weights can be told from others, as they were written."""
        return json.loads((self.path / CHECKSUMS).read_text(encoding="utf-8"))[MODEL]

    def result(self) -> dict[str, Any] | None:
        """The result of the run whose last step this is; None at any other."""
        return self.state().get("result")

    def validation_loss(self) -> float:
        """Measured at this very step; infinite if it was not measured or cannot be read."""
        try:
            loss = self.state()["validation_loss"]
        except (OSError, ValueError, KeyError, TypeError):
            return math.inf
        return math.inf if loss is None else loss


class Checkpoints:
    """All checkpoints of a run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def all(self) -> list[Checkpoint]:
        """Oldest first, damaged ones included."""
        if not self.folder.is_dir():
            return []
        paths = sorted(path for path in self.folder.iterdir() if re.fullmatch(NAME, path.name))
        return sorted(map(Checkpoint, paths), key=lambda checkpoint: checkpoint.step)

    def place(self, step: int) -> Path:
        """The folder of the checkpoint of that step."""
        return self.folder / f"step-{step:08d}"

    def of_step(self, step: int) -> Checkpoint:
        """The one of that step. Raises UsageError if there is none, or if it is damaged."""
        steps = [checkpoint.step for checkpoint in self.all()]
        if step not in steps:
            there = f"there are {', '.join(map(str, steps))}" if steps else "there are none yet"
            raise UsageError(f"{self.folder}: no checkpoint of step {step}; {there}")
        checkpoint = Checkpoint(self.place(step))
        if damage := checkpoint.damage():
            raise UsageError(f"{checkpoint.path} is damaged ({damage}); take another step")
        return checkpoint

    def save(self, step: int, model: Tensors, optimizer: Tensors, state: dict[str, Any]) -> Checkpoint:
        """Write one, durable when this returns. Raises OSError, such as on a full disk, and then leaves nothing."""
        path = self.place(step)
        with new_folder(path) as partial:
            _save_tensors(model, partial / MODEL)
            _save_tensors(optimizer, partial / OPTIMIZER)
            _write_state(partial / STATE, state)
            _write_state(partial / CHECKSUMS, {name: _checksum(partial / name) for name in FILES})
        return Checkpoint(path)

    def newest_good(self) -> Checkpoint | None:
        """The newest one that is not damaged, None if there is none yet; names each damaged one that is passed over.

        Raises UsageError where all are damaged.
        """
        return self._first_good(lambda checkpoint: -checkpoint.step)

    def best_good(self) -> Checkpoint | None:
        """The undamaged one of lowest validation loss; the newest good one if none has a loss. As `newest_good`."""
        return self._first_good(_rank)

    def _first_good(self, order: Callable[[Checkpoint], Any]) -> Checkpoint | None:
        checkpoints = sorted(self.all(), key=order)
        for checkpoint in checkpoints:
            damage = checkpoint.damage()
            if damage is None:
                return checkpoint
            log.warning("checkpoint %s is damaged (%s); trying the next one", checkpoint.path, damage)
        if checkpoints:
            raise UsageError(
                f"{self.folder}: every checkpoint is damaged; restore one from a backup, or delete it "
                "to train again from the start"
            )
        return None

    def clean(self, resumed: Checkpoint | None) -> None:
        """Remove what a crash left half-written, and set aside the damaged ones newer than the one resumed from."""
        if self.folder.is_dir():
            remove_partial(self.folder)
        for checkpoint in self.all():
            if resumed is None or checkpoint.step > resumed.step:
                aside = checkpoint.path.with_suffix(".damaged")
                remove_folder(aside)
                os.rename(checkpoint.path, aside)

    def prune(self, keep: int) -> None:
        """Delete all but the newest `keep` and the best one."""
        checkpoints = self.all()
        best = min(checkpoints, key=_rank)
        for checkpoint in checkpoints[:-keep]:
            if checkpoint != best:
                # Renamed first: a crash while deleting must not leave a checkpoint with files missing.
                rubbish = partial_folder(checkpoint.path)
                remove_folder(rubbish)
                os.rename(checkpoint.path, rubbish)
                remove_folder(rubbish)


def _rank(checkpoint: Checkpoint) -> tuple[float, int]:
    """The lowest loss first; of equal ones, or without any, the newest."""
    return checkpoint.validation_loss(), -checkpoint.step


def _checksum(path: Path) -> str:
    """The SHA-256 of the SHA-256 of a file's blocks, "blocks " before it."""
    whole = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            whole.update(hashlib.sha256(block).hexdigest().encode())
    return f"blocks {whole.hexdigest()}"


def _write_state(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def _save_tensors(tensors: Tensors, path: Path) -> None:
    with named_errors(path):
        save_file({name: tensor.detach().contiguous() for name, tensor in tensors.items()}, path)
