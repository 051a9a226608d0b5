"""What depth does over training: magnitudes, gradients, updates, sinks, entropy and ranks, for every connection.

    attnres dynamics
    attnres dynamics residual block full --seeds 5 --model.layers 24 --model.dim 48
    attnres dynamics residual block:block_size=8 --steps 400 --save-every 50 --out runs/s8

Trains every connection on the same seeds, then profiles each run before its first step and at every --save-every
steps on fixed validation text. The first connection is the baseline. Says of each of the paper's claims (what sublayers
read grows, or is bounded and periodic by block; gradients are even; sinks; the embedding's share) whether the runs show
it, refute it, or do not decide, by a test over paired seeds.

All checkpoints stay on the disk until the runs are profiled (12 MB each at the default size); what remains then is
dynamics.json in every run's folder. Stop it with Ctrl-C or in any other way, and the same command goes on. A run that
diverges is kept, marked, and left out of the means. Ends with tables, OUT/results.html and OUT/figures/;
`attnres report OUT` draws them again from RECORD.
"""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console
from rich.progress import track

from attnres.cli._depth_report import print_line
from attnres.cli._lab_page import draw_page, record_path
from attnres.cli._sweep_display import SweepDisplay
from attnres.cli._tables import print_table
from attnres.cli.ablate import check
from attnres.data import Corpus, check_length, open_corpus
from attnres.lab.dynamics import ARMS, Run, arm_record, moments, profiled_tokens, profiles, runs
from attnres.lab.dynamics_tables import dynamics_tables
from attnres.lab.record import Record, header, read_record, write_record
from attnres.train import RunConfig
from attnres.train.folder import RunFolder
from attnres.train.sweep import JobState, default_workers, failures, require_done, run_jobs

DEFAULTS = RunConfig(steps=160, batch_size=4, evaluate_every=40, save_every=20, validation_tokens=32_768)


def command(
    arms: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="ARM")] = ARMS,
    out: Path = Path("runs/dynamics"),
    record: Path | None = None,
    seeds: int = 3,
    workers: int = default_workers(),
    *,
    config: Annotated[RunConfig, tyro.conf.arg(name="")] = DEFAULTS,
) -> int:
    """Dynamics.

    Args:
        arms: Connections as NAME or NAME:OPTION=VALUE,OPTION=VALUE, before all options. The first is the baseline.
        out: The folder of all runs and of the figures.
        record: The JSON file for everything that was measured; OUT/dynamics.json if not given.
        seeds: Paired seeds: seed, seed + 1, ..
        workers: Runs at a time, each with one thread.
    """
    check(arms, seeds, (1.0,), (1.0,), workers, config)
    planned = runs(arms, range(config.seed, config.seed + seeds), config, out)
    record = record_path("dynamics", record, out)
    console, began = Console(), time.monotonic()
    with console.status("opening the corpus"):
        corpus = open_corpus(config.data)
        check_length(corpus, config.model.context)
    print_line(console, f"{len(planned)} runs of {config.steps} steps, {workers} at a time: {out}")
    try:
        jobs = [run.job for run in planned]
        with SweepDisplay(console, jobs, {run.job.name: run.arm for run in planned}) as display:
            states = run_jobs(jobs, workers, display.watch)
        require_done(states)
        ended = list(zip(planned, states, strict=True))
        written = _record(console, arms, ended, corpus, config)
    except KeyboardInterrupt:
        print("attnres: stopped; the runs are saved, and the same command goes on with them", file=sys.stderr)
        return 130
    write_record(record, written)
    for table in dynamics_tables(written):
        print_table(console, table)
    page = draw_page(console, {"dynamics": read_record(record, "dynamics")}, out)
    print_line(console, f"{(time.monotonic() - began) / 60:.0f} minutes. Record: {record}. Report: {page}")
    if failed := failures([state for state in states if not state.diverged]):
        print(f"attnres: not every run was finished; the tables are without it\n{failed}", file=sys.stderr)
    return 1 if failed else 0


def _record(
    console: Console, arms: Sequence[str], ended: Sequence[tuple[Run, JobState]], corpus: Corpus, config: RunConfig
) -> Record:
    tokens = profiled_tokens(corpus, config)
    done = [run for run, state in ended if state.status == "done"]
    print_line(console, f"profiling {len(done)} runs at {len(moments(config))} moments each")
    measured: dict[str, dict[int, Record]] = {arm: {} for arm in arms}
    for run in track(done, "profiling", console=console, disable=not console.is_terminal):
        measured[run.arm][run.seed] = profiles(run.job.folder, tokens, moments(config))
    recorded = [arm_record(arm, [pair for pair in ended if pair[0].arm == arm], measured[arm]) for arm in arms]
    finished = [run for arm in recorded for run in arm["runs"] if "step_seconds" in run]
    hours = sum(run["step_seconds"] for run in finished) * config.steps / 3600
    run_record = RunFolder(done[0].job.folder).record() or {}
    commits = [run["commit"] for run in finished]
    return header("dynamics", shlex.join(["attnres", *sys.argv[1:]]), run_record, hours, commits) | {"arms": recorded}
