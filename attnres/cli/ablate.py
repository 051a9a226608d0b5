"""The paper's ablation table at laptop scale: every residual rule, its learning rate tuned, with error bars.

    attnres ablate
    attnres ablate --budget 30m
    attnres ablate residual block full hc --seeds 5 --embedding-stds 1.0
    attnres ablate residual full full:heads=4 --grid 1 --steps 400 --out runs/heads

For each arm and scale of the embedding, the learning rates are chosen from a grid of multiples of the defaults: all of
it on one seed, the best two on others too, none of them reported; then every arm runs on the same seeds, so differences
to the first arm are paired. Every run is a one-thread process with a folder of its own; stop it with Ctrl-C or in any
other way, and the same command goes on. A run that diverges is kept, marked, and left out of the means. Ends with
tables, OUT/results.html and OUT/figures/. Arms that RECORD holds already, with the same options and as many seeds or
more, are not run again; `attnres report OUT` draws from it.
"""

from __future__ import annotations

import dataclasses
import re
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from attnres.cli._depth_report import print_line
from attnres.cli._lab_page import draw_page, record_path
from attnres.cli._sweep_display import SweepDisplay
from attnres.cli._tables import print_table
from attnres.data import Corpus, check_length, open_corpus
from attnres.errors import UsageError
from attnres.lab.ablation import (
    ARMS,
    Cell,
    Trial,
    affordable,
    choose,
    final_trials,
    outcome,
    playoff_trials,
    trial,
    tuning_trials,
)
from attnres.lab.record import Record, header, read_record, write_record
from attnres.lab.tables import ablation_tables
from attnres.train import RunConfig, config_to_json
from attnres.train.folder import RunFolder
from attnres.train.sweep import JobState, default_workers, failures, require_done, run_jobs

# Evaluated at the start and the end: nothing is drawn from what lies between, and it is a fifth of a run's time.
DEFAULTS = RunConfig(steps=160, batch_size=4, evaluate_every=160, validation_tokens=32_768)


def command(
    arms: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="ARM")] = ARMS,
    out: Path = Path("runs/ablate"),
    record: Path | None = None,
    seeds: int = 3,
    grid: tuple[float, ...] = (0.5, 1.0, 2.0),
    tuning_seeds: int = 2,
    embedding_stds: tuple[float, ...] = (1.0, 0.02),
    budget: str | None = None,
    workers: int = default_workers(),
    *,
    config: Annotated[RunConfig, tyro.conf.arg(name="")] = DEFAULTS,
) -> int:
    """Ablate.

    Args:
        arms: Connections as NAME or NAME:OPTION=VALUE,OPTION=VALUE, before all options. The first is the baseline.
        out: The folder of all runs and of the figures.
        record: The JSON file for everything that was measured; OUT/ablation.json if not given.
        seeds: Paired seeds: seed, seed + 1, ..
        grid: Multiples of the learning rates (optimizer.lr and optimizer.adamw-lr together) to choose from.
        tuning_seeds: Seeds to choose the rates on; only the best two of the grid run on more than the first.
        embedding_stds: Scales of the embedding, each a table of its own.
        budget: Time to spend, such as 30m or 2h: the arms are taken in order while they fit.
        workers: Runs at a time, each with one thread.
    """
    check(arms, seeds, grid, embedding_stds, workers, config)
    if tuning_seeds < 1:
        raise UsageError(f"tuning-seeds must be at least 1, not {tuning_seeds}")
    spendable = None if budget is None else seconds_of(budget)
    cells = [Cell(arm, std) for std in embedding_stds for arm in arms]
    for cell in cells:
        trial(cell, 1.0, config.seed, config, out)  # refuses a bad arm before anything runs
    record = record_path("ablation", record, out)
    console, began = Console(), time.monotonic()
    with console.status("opening the corpus"):
        corpus = open_corpus(config.data)
        check_length(corpus, config.model.context)
    sweep = {"config": config_to_json(config), "grid": list(grid), "tuning_seeds": tuning_seeds}
    before = earlier(record, sweep)
    missing = [cell for cell in cells if not has_seeds(before.get(cell), seeds)]
    if len(missing) < len(cells):
        print_line(console, f"{len(cells) - len(missing)} of {len(cells)} arms are in {record} already")
    left_out: list[Cell] = []
    if missing and spendable is not None:
        runs_of_each = seeds + (len(grid) + 2 * (tuning_seeds - 1)) * (len(grid) > 1)
        missing, left_out = _within(spendable, missing, runs_of_each, config, corpus, out, workers)
    failed = ""
    if missing:
        try:
            new, states = _train(console, missing, grid, tuning_seeds, seeds, config, out, workers)
        except KeyboardInterrupt:
            print("attnres: stopped; the runs are saved, and the same command goes on with them", file=sys.stderr)
            return 130
        failed = failures([state for state in states if not state.diverged])
        run_record = next(RunFolder(state.job.folder).record() or {} for state in states if state.status == "done")
        write_record(record, _merged(before, new, cells, left_out, sweep, run_record))
    written = read_record(record, "ablation")
    for table in ablation_tables(written):
        print_table(console, table)
    page = draw_page(console, {"ablation": written}, out)
    print_line(console, f"{(time.monotonic() - began) / 60:.0f} minutes. Record: {record}. Report: {page}")
    if failed:
        print(f"attnres: not every run was finished; the table is without it\n{failed}", file=sys.stderr)
    return 1 if failed else 0


def check(
    arms: Sequence[str],
    seeds: int,
    grid: Sequence[float],
    embedding_stds: Sequence[float],
    workers: int,
    config: RunConfig,
) -> None:
    if seeds < 1 or workers < 1:
        raise UsageError(f"seeds and workers must be at least 1, not {seeds} and {workers}")
    if len(set(arms)) < max(2, len(arms)):
        raise UsageError("give at least two arms, each once; the first is the baseline")
    for name, values in (("grid", grid), ("embedding-stds", embedding_stds)):
        if not values or len(set(values)) < len(values) or not all(0 < value < float("inf") for value in values):
            raise UsageError(f"{name}: give at least one positive number, each once")
    if (config.model.connection, config.model.connection_options) != (DEFAULTS.model.connection, {}):
        raise UsageError("the arms name the connections: write them as NAME:OPTION=VALUE instead of --model.connection")


def seconds_of(text: str) -> float:
    """Of 90s, 30m, 2h or 1.5h."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", text.strip())
    if not match or float(match[1]) == 0:
        raise UsageError(f"budget: write a time such as 30m or 2h, not {text!r}")
    return float(match[1]) * {"s": 1, "m": 60, "h": 3600}[match[2]]


def _within(
    seconds: float, cells: list[Cell], runs: int, config: RunConfig, corpus: Corpus, out: Path, workers: int
) -> tuple[list[Cell], list[Cell]]:
    """The cells that the budget buys, and those that it leaves out. Says what it leaves out."""
    console = Console()
    with console.status("measuring how long each arm takes"):
        chosen, minutes = affordable(cells, runs, config, corpus, out, seconds, workers)
    left_out = [cell for cell in cells if cell not in chosen]
    total = sum(minutes[cell] for cell in chosen)
    print_line(console, f"the budget buys {len(chosen)} of {len(cells)} arms, about {total:.0f} minutes")
    for cell in left_out:
        print_line(console, f"left out: {cell.name}, about {minutes[cell]:.1f} minutes")
    if not chosen:
        raise UsageError(f"the budget is too small for any arm; the first needs about {minutes[cells[0]]:.1f} minutes")
    return chosen, left_out


def _train(
    console: Console,
    cells: list[Cell],
    grid: Sequence[float],
    tuning_seeds: int,
    seeds: int,
    config: RunConfig,
    out: Path,
    workers: int,
) -> tuple[dict[Cell, Record], list[JobState]]:
    """Tune, then train: the cells of the record, and how every run ended."""

    def run(what: str, trials: Sequence[Trial]) -> list[tuple[Trial, JobState]]:
        if not trials:
            return []
        print_line(console, f"{what}: {len(trials)} runs of {config.steps} steps, {workers} at a time")
        jobs = [trial.job for trial in trials]
        with SweepDisplay(console, jobs, {trial.job.name: trial.cell.name for trial in trials}) as display:
            return list(zip(trials, run_jobs(jobs, workers, display.watch), strict=True))

    tuning = run("tuning", tuning_trials(cells, grid, config, out))
    tuned = _by_cell(cells, tuning)
    tuning += run("tuning, the best two again", playoff_trials(tuned, tuning_seeds, config, out))
    tuned = _by_cell(cells, tuning)
    chosen = {cell: grid[0] if len(grid) == 1 else choose(tuned[cell]) for cell in cells}
    trainable = {cell: factor for cell, factor in chosen.items() if factor is not None}
    final = run("final runs", final_trials(trainable, seeds, config, out))
    states = [state for _, state in (*tuning, *final)]
    require_done([state for _, state in final] or states)
    recorded = {}
    for cell, factor in chosen.items():
        ends = [outcome(*one) for one in final if one[0].cell == cell]
        recorded[cell] = {**dataclasses.asdict(cell), "factor": factor, "tuning": tuned[cell], "runs": ends}
    return recorded, states


def _by_cell(cells: Sequence[Cell], ended: Sequence[tuple[Trial, JobState]]) -> dict[Cell, list[Record]]:
    return {cell: [outcome(*one) for one in ended if one[0].cell == cell] for cell in cells}


def earlier(path: Path, sweep: Record) -> dict[Cell, Record]:
    """The cells that the record holds already. Raises UsageError if it is another sweep's."""
    if not path.exists():
        return {}
    record = read_record(path, "ablation")
    differing = [name for name in sweep if record["sweep"].get(name) != sweep[name]]
    if differing:
        raise UsageError(
            f"{path} holds a sweep with another {' and another '.join(differing)}; repeat its options to go on with "
            "it, or choose another --record and --out"
        )
    return {Cell(cell["arm"], cell["embedding_std"]): cell for cell in record["cells"]}


def has_seeds(entry: Record | None, seeds: int) -> bool:
    """Whether the cell is there with as many seeds or more. Where no learning rate trains, no run is missing."""
    if entry is None or any(run["status"] == "failed" for run in entry["runs"]):
        return False
    return len(entry["runs"]) >= seeds or entry["factor"] is None


def _merged(
    before: Mapping[Cell, Record],
    new: Mapping[Cell, Record],
    cells: Sequence[Cell],
    left_out: Sequence[Cell],
    sweep: Record,
    run_record: Record,
) -> Record:
    """The record with the new cells in it, in the order of this command."""
    everything = {**before, **new}
    ordered = [everything[cell] for cell in dict.fromkeys([*cells, *everything]) if cell in everything]
    runs = [run for entry in ordered for run in (*entry["tuning"], *entry["runs"])]
    hours = sum(run["step_seconds"] * run["curve"][-1][0] for run in runs if "step_seconds" in run) / 3600
    commits = [run.get("commit") for run in runs]
    return header("ablation", shlex.join(["attnres", *sys.argv[1:]]), run_record, hours, commits) | {
        "sweep": sweep,
        "embedding_stds": list(dict.fromkeys(entry["embedding_std"] for entry in ordered)),
        "left_out": [dataclasses.asdict(cell) for cell in left_out],
        "cells": ordered,
    }
