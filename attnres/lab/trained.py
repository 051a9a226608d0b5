"""Trained runs that an experiment measures: found in folders, comparable, each with how it ended; and its plan."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnres.data import Corpus, open_corpus
from attnres.data.documents import shorten
from attnres.errors import UsageError, check_count
from attnres.files import read_json
from attnres.lab.experiment import Progress
from attnres.lab.options import RunsOptions
from attnres.lab.outcome import has_learned, run_record_of
from attnres.lab.record import Record, config_pairs, header
from attnres.train import RunConfig, config_from_json
from attnres.train.folder import FREE_FIELDS, RunFolder

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


BASELINE = "residual"
"""What other connections are compared with, where there is a run of it; else the first connection."""


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


@dataclass(frozen=True)
class Plan:
    """The runs to measure: those that are done. The others are named and left out."""

    options: RunsOptions
    runs: Sequence[Trained]

    @property
    def done(self) -> list[Trained]:
        return [run for run in self.runs if run.status == "done"]

    @property
    def baseline(self) -> str:
        arms = [run.arm for run in self.done]
        return BASELINE if BASELINE in arms else arms[0]

    @property
    def left_out(self) -> list[str]:
        return [f"left out: {run.folder.path} ({run.status})" for run in self.runs if run.status != "done"]

    def header(self, seconds: float) -> dict[str, Any]:
        """What every record says, of the runs measured in so many seconds."""
        records = [run_record_of(run.folder.path) for run in self.done]
        return header(records[0], seconds, [record["versions"]["commit"] for record in records])

    def open_corpus(self, progress: Progress) -> Corpus:
        """The text of all runs. Raises UsageError if one was trained on another."""
        with progress.during("opening the corpus"):
            corpus = open_corpus(self.done[0].config.data)
        for run in self.done:
            run.folder.refuse_other_text(corpus, "leave the run out")
        return corpus


def plan(options: RunsOptions, out: Path) -> Plan:
    """Raises UsageError where there is no run that is finished."""
    given = [*options.folders, *([] if options.runs is None else [options.runs])]
    if not given:
        raise UsageError("give run folders, or a folder that holds some with --runs")
    check_count("tokens", options.tokens)
    planned = Plan(options, open_runs(find_runs(given)))
    if not planned.done:
        first = planned.runs[0]
        raise UsageError(f"no run is finished: {first.folder.path} is {first.status}")
    return planned


def configs(plan: Plan) -> dict[tuple[str, int], RunConfig]:
    """The configuration of each run, by arm and seed."""
    return {(run.arm, run.config.seed): run.config for run in plan.runs}


def refuse_to_lose(path: Path, record: Record, runs: Mapping[tuple[str, int], RunConfig]) -> None:
    """Raise UsageError if the file's record holds what one of these runs, which would replace it, does not."""
    instead = "which would be lost; choose another --record (or --out), or delete it"
    # A run's vocabulary is its text's, and until then that of the options.
    differing = set(_differing(config_from_json(record.config), next(iter(runs.values())))) - {"model.vocab_size"}
    if differing:
        raise UsageError(f"{path} holds runs of another configuration ({', '.join(sorted(differing))}), {instead}")
    if lost := sorted(record.measured - runs.keys()):
        names = shorten([f"{arm} seed {seed}" for arm, seed in lost])
        raise UsageError(f"{path} holds runs that this command leaves out ({names}), {instead}")


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
    pairs = config_pairs(first, other)
    differing = [name for name, (there, here) in pairs.items() if name not in MAY_DIFFER and there != here]
    if bool(first.start_from) != bool(other.start_from):
        differing.append("start_from")
    return differing
