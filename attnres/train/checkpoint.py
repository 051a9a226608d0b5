"""Checkpoints: written atomically, checked by SHA-256, the newest few and the best one kept.

checkpoints/step-00000400/model.safetensors        the weights
                          optimizer.safetensors    optimizer state and random-number state
                          state.json               step, position in the data, validation loss; of the last step
                                                   the run's result
                          checksums.json           of the three: the SHA-256 of the SHA-256 of their blocks
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from attnres.errors import UsageError, first_line
from attnres.files import (
    block_hashes,
    named_errors,
    new_folder,
    partial_folder,
    read_json,
    remove_folder,
    remove_partial,
)
from attnres.model import TransformerConfig
from attnres.train.jsonconfig import flat_fields, model_from_json, model_to_json

log = logging.getLogger(__name__)

T = TypeVar("T")

Tensors = Mapping[str, Tensor]

MODEL, OPTIMIZER, STATE, CHECKSUMS = "model.safetensors", "optimizer.safetensors", "state.json", "checksums.json"
FILES = (MODEL, OPTIMIZER, STATE)
NAME = r"step-\d{8,}"
"""The names of checkpoints' folders, as a regular expression."""
BLOCKS = "blocks "
"""What a checksum begins with: it is one of a file's blocks, so that processes can share the work."""

Hashes = Callable[[Path], Mapping[int, str]]
"""What gives the hashes of a file's blocks; see `block_hashes`."""


@dataclass(frozen=True)
class Checkpoint:
    """One folder on the disk, which may be damaged."""

    path: Path

    @property
    def step(self) -> int:
        return int(self.path.name.removeprefix("step-"))

    def model(self) -> dict[str, Tensor]:
        """The weights. Raises UsageError if the file is no file of tensors."""
        with self.readable(MODEL):
            return load_file(self.path / MODEL)

    def optimizer(self) -> dict[str, Tensor]:
        """Optimizer and random-number state. Raises UsageError if the file is no file of tensors."""
        with self.readable(OPTIMIZER):
            return load_file(self.path / OPTIMIZER)

    def state(self) -> dict[str, Any]:
        """Step, position in the data, validation loss, the model's configuration."""
        return read_json((self.path / STATE).read_text(encoding="utf-8"))

    def require(self, model: TransformerConfig, weights: Tensors) -> None:
        """Raise UsageError, naming what differs, unless this is a checkpoint of that model with those weights."""
        state = self.state()
        stored = state["model"]
        if ".py:" in stored["connection"]:  # its file has another name from here; the run's record knows the file
            stored = {**stored, "connection": model.connection}
        there, here = flat_fields(model_to_json(model_from_json(stored))), flat_fields(model_to_json(model))
        names = [name for name in {**there, **here} if there.get(name) != here.get(name)]
        self._refuse([f"{name} is {there.get(name)!r} in it and {here.get(name)!r} in the run" for name in names])
        with self.readable(MODEL), safe_open(self.path / MODEL, "pt") as file:
            shapes = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118 not a dict
        expected = {name: list(weight.shape) for name, weight in weights.items()}
        names = [name for name in expected if shapes.get(name) != expected[name]]
        self._refuse([f"{name} is {shapes.get(name)} in it and {expected[name]} in the run" for name in names])

    def _refuse(self, differing: Sequence[str]) -> None:
        if differing:
            raise UsageError(
                f"{self.path}: a checkpoint of another model ({differing[0]}); put back the run's own, or delete it"
            )

    @contextmanager
    def readable(self, name: str) -> Iterator[None]:
        """Let what safetensors cannot read be a UsageError of one line."""
        try:
            yield
        except SafetensorError as error:
            raise UsageError(
                f"{self.path / name}: cannot be read ({first_line(error)}); delete it to go on from another"
            ) from error

    def damage(self, hashes: Hashes = block_hashes) -> str | None:
        """What is wrong with the files, or None if they are as they were written."""
        try:
            expected = read_json((self.path / CHECKSUMS).read_text(encoding="utf-8"))
            for name in FILES:
                if checksum_of_blocks(hashes(self.path / name)) != expected[name]:
                    return f"{name} is not as it was written"
        except FileNotFoundError as error:
            return f"{Path(error.filename).name} is missing"
        except OSError as error:
            return f"{Path(error.filename or self.path).name} cannot be read ({error.strerror})"
        except (ValueError, KeyError, TypeError, AttributeError):
            return f"{CHECKSUMS} is not as it was written"
        return None

    def weights_checksum(self) -> str:
        """By which the weights can be told from others, as they were written."""
        return read_json((self.path / CHECKSUMS).read_text(encoding="utf-8"))[MODEL]

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
        checkpoint = Checkpoint(self.place(step))
        damage = checkpoint.damage()
        steps = [checkpoint.step for checkpoint in self.all()]  # after that: a run that goes on may delete it
        if step not in steps:
            there = f"there are {', '.join(map(str, steps))}" if steps else "there are none yet"
            raise UsageError(f"{self.folder}: no checkpoint of step {step}; {there}")
        if damage is not None:
            raise UsageError(f"{checkpoint.path} is damaged ({damage}); take another step")
        return checkpoint

    def save(self, step: int, model: Tensors, optimizer: Tensors, state: dict[str, Any]) -> Checkpoint:
        """Write one, durable when this returns. Raises OSError, such as on a full disk, and then leaves nothing."""
        path = self.place(step)
        with new_folder(path) as partial:
            _save_tensors(model, partial / MODEL)
            _save_tensors(optimizer, partial / OPTIMIZER)
            write_state(partial / STATE, state)
            write_state(partial / CHECKSUMS, {name: checksum(partial / name) for name in FILES})
        return Checkpoint(path)

    def newest_good(self, hashes: Hashes = block_hashes) -> Checkpoint | None:
        """The newest one that is not damaged; names in one line each damaged one that is passed over.

        Returns:
            None if the run has not saved any yet.

        Raises:
            UsageError: there are some, but all are damaged.
        """
        return self._first_good(lambda checkpoint: -checkpoint.step, "the one before it", hashes)

    def best_good(self) -> Checkpoint | None:
        """The undamaged one of lowest validation loss; the newest good one if none has a loss. As `newest_good`."""
        return self._first_good(_rank, "the next best")

    def _first_good(
        self, order: Callable[[Checkpoint], Any], following: str, hashes: Hashes = block_hashes
    ) -> Checkpoint | None:
        while True:
            checkpoints = sorted(self.all(), key=order)
            for checkpoint in checkpoints:
                damage = checkpoint.damage(hashes)
                if damage is None:
                    return checkpoint
                if not os.path.lexists(checkpoint.path):
                    break  # a run that goes on has deleted it, and has written another
                log.warning("checkpoint %s is damaged (%s); trying %s", checkpoint.path, damage, following)
            else:
                if checkpoints:
                    raise UsageError(
                        f"{self.folder}: every checkpoint is damaged; restore one from a backup, or delete it "
                        "to train again from the start"
                    )
                return None

    def clean(self, resumed: Checkpoint | None) -> None:
        """Remove what a crash left half-written, and set aside the damaged ones newer than the one resumed from."""
        if self.folder.is_dir():
            remove_partial(self.folder, made=NAME)
        for checkpoint in self.all():
            if resumed is None or checkpoint.step > resumed.step:
                aside = checkpoint.path.with_suffix(".damaged")
                remove_folder(aside)
                os.rename(checkpoint.path, aside)

    def prune(self, keep: int, stable: int = -1) -> None:
        """Delete all but the newest `keep`, the best one, and the last one up to step `stable`, to extend the run."""
        checkpoints = self.all()
        extendable = max((checkpoint.step for checkpoint in checkpoints if checkpoint.step <= stable), default=None)
        best = min(checkpoints, key=_rank)
        for checkpoint in checkpoints[:-keep]:
            if checkpoint != best and checkpoint.step != extendable:
                # Renamed first: a crash while deleting must not leave a checkpoint with files missing.
                rubbish = partial_folder(checkpoint.path)
                remove_folder(rubbish)
                os.rename(checkpoint.path, rubbish)
                remove_folder(rubbish)


def _rank(checkpoint: Checkpoint) -> tuple[float, int]:
    """The lowest loss first; of equal ones, or without any, the newest."""
    return checkpoint.validation_loss(), -checkpoint.step


def read_chosen(choose: Callable[[], Checkpoint | None], read: Callable[[Checkpoint], T]) -> T | None:
    """What `read` finds in the chosen checkpoint, None without one. If a run that goes on deletes it meanwhile, another
    one is chosen.
    """
    while (checkpoint := choose()) is not None:
        try:
            return read(checkpoint)
        except FileNotFoundError:
            if os.path.lexists(checkpoint.path):
                raise
    return None


def checksum_of_blocks(hashes: Mapping[int, str]) -> str:
    """One checksum from those of a file's blocks."""
    return BLOCKS + hashlib.sha256("".join(hashes[number] for number in sorted(hashes)).encode()).hexdigest()


def checksum(path: Path) -> str:
    """The checksum of a file, taken by one process."""
    return checksum_of_blocks(block_hashes(path))


def write_state(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def _save_tensors(tensors: Tensors, path: Path) -> None:
    with named_errors(path):
        save_file({name: tensor.detach().contiguous() for name, tensor in tensors.items()}, path)
