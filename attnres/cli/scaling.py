"""Scaling laws at laptop scale: loss against compute for several sizes, and the compute that a connection saves.

    attnres scaling
    attnres scaling residual full --sizes 8x32 12x48 16x64 --seeds 2
    attnres scaling --csv results/paper-scaling.csv --unit PFLOP/s-days

Trains every connection at every size on tokens in proportion to the parameters, fits L = A C^-a in log space, and says
how many times the compute the first connection needs for the others' loss, with 95% bootstrap intervals. With --csv it
only fits: columns arm, compute, loss and, for pairs, size and seed; the first arm is the baseline. Every run has a
folder of its own; stop it with Ctrl-C or in any other way, and the same command goes on. Ends with a table and
OUT/figures/, and after training with OUT/results.html; `attnres report OUT` draws them again from RECORD.
"""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from attnres.analysis.powerlaw import fit_power_laws, read_points
from attnres.cli._depth_report import print_line
from attnres.cli._lab_page import draw_page, record_path
from attnres.cli._sweep_display import SweepDisplay
from attnres.cli._tables import print_table
from attnres.cli.ablate import check
from attnres.data import check_length, open_corpus
from attnres.errors import UsageError
from attnres.lab.ablation import outcome_of
from attnres.lab.record import Record, header, read_record, write_record
from attnres.lab.scaling import ARMS, SIZES, Run, Size, diverged, final_points, flops_per_token, parse_size, runs
from attnres.lab.tables import scaling_table
from attnres.report.lab import write_fit
from attnres.train import RunConfig
from attnres.train.folder import RunFolder
from attnres.train.sweep import JobState, default_workers, failures, require_done, run_jobs

DEFAULTS = RunConfig(batch_size=4, validation_tokens=32_768)


def command(
    arms: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="ARM")] = ARMS,
    out: Path = Path("runs/scaling"),
    record: Path | None = None,
    sizes: tuple[str, ...] = SIZES,
    tokens_per_parameter: float = 0.4,
    seeds: int = 3,
    csv: Path | None = None,
    unit: str = "FLOPs",
    workers: int = default_workers(),
    *,
    config: Annotated[RunConfig, tyro.conf.arg(name="")] = DEFAULTS,
) -> int:
    """Scaling.

    Args:
        arms: Connections as NAME or NAME:OPTION=VALUE,OPTION=VALUE, before all options. The first is the baseline.
        out: The folder of all runs and of the figures.
        record: The JSON file for everything that was measured; OUT/scaling.json if not given.
        sizes: Models as LAYERSxDIM, at least three. Steps, heads, layers and dim below are replaced by theirs.
        tokens_per_parameter: Tokens of a run over the parameters of its sublayers.
        seeds: Paired seeds: seed, seed + 1, ..
        csv: Train nothing; fit the points of this file.
        unit: What the compute of the CSV is counted in.
        workers: Runs at a time, each with one thread.
    """
    console = Console()
    if csv is not None:
        if arms != ARMS or record is not None:
            raise UsageError("--csv fits all arms of its file and writes no record; leave out the ARMs and --record")
        points = read_points(csv)
        print_table(console, scaling_table(*fit_power_laws(points), unit))
        print_line(console, f"Figure: {write_fit(points, unit, out)}")
        return 0
    check(arms, seeds, (1.0,), (1.0,), workers, config)
    if len(set(sizes)) < max(3, len(sizes)):
        raise UsageError("sizes: give at least three, each once; a line through two points has no error")
    if not 0 < tokens_per_parameter < float("inf"):
        raise UsageError(f"tokens-per-parameter must be positive, not {tokens_per_parameter}")
    seed_range = range(config.seed, config.seed + seeds)
    planned = runs(arms, [parse_size(size) for size in sizes], seed_range, config, tokens_per_parameter, out)
    record = record_path("scaling", record, out)
    began = time.monotonic()
    with console.status("opening the corpus"):
        check_length(open_corpus(config.data), config.model.context)
    jobs = [run.job for run in planned]
    flops = {(run.arm, run.size): flops_per_token(run) for run in planned if run.seed == config.seed}
    cost = {run.job.name: flops[run.arm, run.size] for run in planned}
    tokens = sum(run.job.config.steps for run in planned) * _tokens_per_step(config)
    print_line(console, f"{len(jobs)} runs, {tokens / 1e6:.1f} million tokens in all, {workers} at a time: {out}")
    try:
        names = {run.job.name: f"{run.arm}, {run.size.name}" for run in planned}
        with SweepDisplay(console, jobs, names, lambda job: cost[job.name]) as display:
            states = run_jobs(jobs, workers, display.watch)
    except KeyboardInterrupt:
        print("attnres: stopped; the runs are saved, and the same command goes on with them", file=sys.stderr)
        return 130
    require_done(states)
    written = _record(list(zip(planned, states, strict=True)), flops, arms, tokens_per_parameter)
    write_record(record, written)
    print_table(console, scaling_table(*fit_power_laws(final_points(written)), "FLOPs", diverged(written)))
    page = draw_page(console, {"scaling": read_record(record, "scaling")}, out)
    print_line(console, f"{(time.monotonic() - began) / 60:.0f} minutes. Record: {record}. Report: {page}")
    if failed := failures([state for state in states if not state.diverged]):
        print(f"attnres: not every run was finished; the fit is without it\n{failed}", file=sys.stderr)
    return 1 if failed else 0


def _record(
    ended: Sequence[tuple[Run, JobState]],
    flops: Mapping[tuple[str, Size], float],
    arms: Sequence[str],
    tokens_per_parameter: float,
) -> Record:
    recorded = [_recorded(run, state, flops[run.arm, run.size]) for run, state in ended]
    hours = sum(run["step_seconds"] * run["steps"] for run in recorded if "step_seconds" in run) / 3600
    done = next(run for run, state in ended if state.status == "done")
    run_record = RunFolder(done.job.folder).record() or {}
    commits = [run["commit"] for run in recorded]
    head = header("scaling", shlex.join(["attnres", *sys.argv[1:]]), run_record, hours, commits)
    return head | {"arms": list(arms), "tokens_per_parameter": tokens_per_parameter, "runs": recorded}


def _recorded(run: Run, state: JobState, flops: float) -> dict:
    tokens_per_step = _tokens_per_step(run.job.config)
    result = outcome_of(run.job.folder, state)
    curve = [[step * tokens_per_step, loss] for step, loss in result.pop("curve")]
    return {
        "arm": run.arm,
        "size": run.size.name,
        "parameters": run.size.parameters,
        "seed": run.seed,
        "steps": run.job.config.steps,
        "tokens": run.job.config.steps * tokens_per_step,
        "flops_per_token": flops,
        **result,
        "curve": curve,
    }


def _tokens_per_step(config: RunConfig) -> int:
    return config.batch_size * config.accumulate * config.model.context
