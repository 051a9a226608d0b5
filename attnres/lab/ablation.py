"""The paper's Table 4 at laptop scale: every connection, its learning rate tuned, at several embedding scales."""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from attnres.data import Corpus
from attnres.lab.arms import arm_folder, arm_model
from attnres.train import RunConfig, read_metrics
from attnres.train.folder import RunFolder
from attnres.train.sweep import Job, JobState
from attnres.train.trainer import Trainer

ARMS = (
    "residual",
    "block",
    "full",
    "x0",
    "denseformer",
    "mhc",
    "hc",
    "window",
    "full:query=input",
    "full:mixing=static",
    "full:weighting=sigmoid",
    "full:key_norm=false",
    "full:heads=16",
    "block:block_size=2",
    "block:block_size=8",
    "block:block_size=16",
    "block:key_norm=false",
    "block:heads=16",
    "mhc-lite",
    "identity-hc",
    "rezero",
    "highway",
)
"""In the order in which a budget buys them."""

TUNING_SEED = 1000
"""Learning rates are chosen on seeds from this on: choosing on a reported one would favour the arm tuned most."""

START_SECONDS = 6.0
"""About what a worker process takes before its first step."""


@dataclass(frozen=True)
class Cell:
    """One arm at one scale of the embedding: a learning rate to choose, then a run for every seed."""

    arm: str
    embedding_std: float

    @property
    def name(self) -> str:
        return f"{self.arm}, std {self.embedding_std:g}"


@dataclass(frozen=True)
class Trial:
    """One run of a cell, with both learning rates times `factor`."""

    cell: Cell
    factor: float
    seed: int
    job: Job


def trial(cell: Cell, factor: float, seed: int, config: RunConfig, out: Path) -> Trial:
    """Raises UsageError if the cell's connection or its options do not exist."""
    optimizer = dataclasses.replace(
        config.optimizer, lr=factor * config.optimizer.lr, adamw_lr=factor * config.optimizer.adamw_lr
    )
    model = dataclasses.replace(arm_model(cell.arm, config.model), embedding_std=cell.embedding_std)
    # Only the last weights are kept: there are hundreds of runs.
    chosen = dataclasses.replace(
        config, model=model, optimizer=optimizer, seed=seed, save_every=max(1, config.steps), keep=1
    )
    folder = arm_folder(out / f"std-{cell.embedding_std:g}", cell.arm) / f"lr-{factor:g}" / f"seed-{seed}"
    return Trial(cell, factor, seed, Job(f"{cell.name}, lr x{factor:g}, seed {seed}", chosen, folder))


def tuning_trials(cells: Sequence[Cell], grid: Sequence[float], config: RunConfig, out: Path) -> list[Trial]:
    """One run for every cell and point of the grid; none if there is nothing to choose."""
    if len(grid) < 2:
        return []
    return [trial(cell, factor, config.seed + TUNING_SEED, config, out) for cell in cells for factor in grid]


def playoff_trials(
    tuned: Mapping[Cell, Sequence[Mapping[str, Any]]], seeds: int, config: RunConfig, out: Path
) -> list[Trial]:
    """The two best rates of each cell's grid on the other tuning seeds. One seed alone often chose by a few thousandths
    of a nat between rates whose means differ by several hundredths."""
    first = config.seed + TUNING_SEED
    return [
        trial(cell, run["factor"], seed, config, out)
        for seed in range(first + 1, first + seeds)
        for cell, outcomes in tuned.items()
        for run in sorted((run for run in outcomes if run["status"] == "done"), key=lambda run: run["loss"])[:2]
    ]


def final_trials(chosen: Mapping[Cell, float], seeds: int, config: RunConfig, out: Path) -> list[Trial]:
    """Seed by seed, so that a sweep that is stopped early has pairs for every arm."""
    return [
        trial(cell, factor, seed, config, out)
        for seed in range(config.seed, config.seed + seeds)
        for cell, factor in chosen.items()
    ]


def outcome(trial: Trial, state: JobState) -> dict[str, Any]:
    """What is recorded of one run of a cell."""
    return {"factor": trial.factor, "seed": trial.seed, **outcome_of(trial.job.folder, state)}


def outcome_of(path: Path, state: JobState) -> dict[str, Any]:
    """How a run ended: its status, its validation losses in nats per byte, what it cost, and the commit of its code.

    status: "done"; "diverged" if it met a number that is not finite or ended no lower than it began; "failed" if it
    stopped for any other reason.
    """
    folder = RunFolder(path)
    evaluations = [record for record in read_metrics(folder.metrics) if record["kind"] == "eval"]
    run_record = folder.record() or {}
    bytes_per_token = (run_record.get("corpus") or {}).get("bytes_per_token", 1.0)
    curve = [[record["step"], record["loss"] / bytes_per_token] for record in evaluations]
    end = {"curve": curve, "commit": run_record.get("versions", {}).get("commit")}
    if state.status != "done":
        return {"status": "diverged" if state.diverged else "failed", "error": state.error, **end}
    summary = folder.summary() or {}
    loss = summary["validation_loss"] / bytes_per_token
    status = "done" if loss < curve[0][1] else "diverged"
    cost = {name: summary[name] for name in ("step_seconds", "peak_memory_bytes")}
    return {"status": status, "loss": loss, **cost, **end}


def choose(outcomes: Sequence[Mapping[str, Any]]) -> float | None:
    """The factor of lowest mean loss among those that ran on most seeds, none of them unfinished; None without any."""
    losses: dict[float, list[float]] = {}
    for run in outcomes:
        losses.setdefault(run["factor"], []).append(run["loss"] if run["status"] == "done" else math.inf)
    finished = {factor: of for factor, of in losses.items() if math.isfinite(sum(of))}
    return min(finished, key=lambda f: (-len(finished[f]), statistics.mean(finished[f])), default=None)


def affordable(
    cells: Sequence[Cell], runs_of_each: int, config: RunConfig, corpus: Corpus, out: Path, seconds: float, workers: int
) -> tuple[list[Cell], dict[Cell, float]]:
    """The cells that fit into the time, taken in order, and every cell's estimated minutes.

    A cell costs its runs at the measured time of a few steps of its own, on one thread; what is trained already is
    not taken off. A later cell that still fits is taken where an earlier one did not.
    """
    chosen, left, minutes = [], seconds * workers, {}
    for cell in cells:
        cost = runs_of_each * seconds_of_a_run(trial(cell, 1.0, config.seed, config, out).job.config, corpus)
        minutes[cell] = cost / 60 / workers
        if cost <= left:
            left -= cost
            chosen.append(cell)
    return chosen, minutes


def seconds_of_a_run(config: RunConfig, corpus: Corpus) -> float:
    """From three measured steps after two that warm up."""
    trainer = Trainer(dataclasses.replace(config, steps=max(5, config.steps)), corpus)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        seconds = []
        for _ in range(5):
            began = time.perf_counter()
            trainer.train_step()
            seconds.append(time.perf_counter() - began)
    finally:
        torch.set_num_threads(threads)
    step = statistics.median(seconds[2:])
    evaluations = 1 + math.ceil(config.steps / config.evaluate_every)
    forward = step / 3 * max(1.0, config.validation_tokens / trainer.tokens_per_step)
    return START_SECONDS + config.steps * step + evaluations * forward
