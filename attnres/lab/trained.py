"""Trained runs that an experiment measures: found in folders, comparable, each with how it ended."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from attnres.errors import UsageError
from attnres.files import read_json
from attnres.lab.engine import has_learned
from attnres.train import RunConfig, config_to_json
from attnres.train.folder import FREE_FIELDS, RunFolder
from attnres.train.jsonconfig import flat_fields

MAY_DIFFER = (
    *FREE_FIELDS,
    "model.connection",
    "seed",
    "optimizer.lr",
    "optimizer.adamw_lr",
    "optimizer.connection_rate",
    "start_from",
)
"""Between runs that are compared. Learning rates may be tuned for each connection.

A run may begin with another of its own, but either all of them do or none does.
"""


@dataclass(frozen=True)
class Trained:
    """A run folder and what it says of itself."""

    folder: RunFolder
    config: RunConfig
    status: str
    """"done"; "diverged" if it ended no lower than it began; "unfinished" if it has no result."""

    @property
    def arm(self) -> str:
        return self.config.model.connection


def find_runs(folders: Sequence[Path]) -> list[Path]:
    """The run folders among and inside the given ones, in order. Raises UsageError where there is none."""
    found: list[Path] = []
    for folder in folders:
        if not folder.is_dir():
            raise UsageError(f"{folder}: no such folder; give run folders, or a folder that holds some")
        inside = _inside(folder)
        if not inside:
            raise UsageError(f"{folder}: no run there; give run folders, or a folder that holds some")
        found += inside
    return list(dict.fromkeys(found))


def _inside(folder: Path) -> list[Path]:
    found, seen = [], set[str]()
    for name, below, _ in os.walk(folder, followlinks=True):
        if (real := os.path.realpath(name)) in seen:
            below.clear()  # a link to what was gone through, perhaps to a folder above
            continue
        seen.add(real)
        if _is_run(Path(name)):
            found.append(Path(name))
            below.clear()  # steps-N in it are ends that it had before it went on
    return sorted(found)


def _is_run(folder: Path) -> bool:
    """Whether config.json is a run's, or may have been: opening a damaged one says so. Other programs write some."""
    try:
        record = read_json((folder / "config.json").read_bytes())
    except (OSError, ValueError) as error:
        return isinstance(error, ValueError)
    return isinstance(record, dict) and {"config", "corpus", "versions"} <= record.keys()


def open_runs(folders: Sequence[Path]) -> list[Trained]:
    """The runs. Raises UsageError, naming it, where they differ in more than they may."""
    trained = []
    for path in folders:
        folder = RunFolder(path)
        trained.append(Trained(folder, folder.config(), _status(folder)))
    first = trained[0]
    for run in trained[1:]:
        differing = _differing(first.config, run.config)
        if differing:
            raise UsageError(
                f"{run.folder.path} and {first.folder.path} are runs of different configurations "
                f"({', '.join(differing)}); give runs that differ in connection and seed alone"
            )
    seen: dict[tuple[str, int], Path] = {}
    for run in trained:
        key = run.arm, run.config.seed
        if key in seen:
            raise UsageError(f"{run.folder.path} and {seen[key]} are both {key[0]}, seed {key[1]}; give one of them")
        seen[key] = run.folder.path
    return trained


def _status(folder: RunFolder) -> str:
    summary = folder.summary()
    if summary is None:
        return "unfinished"
    evaluations = [record["loss"] for record in folder.evaluations()]
    return "done" if has_learned(evaluations, summary["validation_loss"]) else "diverged"


def _differing(first: RunConfig, other: RunConfig) -> list[str]:
    one, two = (flat_fields(config_to_json(config)) for config in (first, other))
    differing = [name for name in {**one, **two} if name not in MAY_DIFFER and one.get(name) != two.get(name)]
    if bool(first.start_from) != bool(other.start_from):
        differing.append("start_from")
    return differing
