"""Train several residual connections side by side and show what depth does in each.

With nothing set: the plain residual, the embedding fed back in (x0), Block and Full Attention Residuals, five seeds
each, on the Python standard library's own source files, byte by byte:

    attnres compare
    attnres compare --quick
    attnres compare residual full hc mhc --seeds 5
    attnres compare residual block block:block_size=8 full:query=input,heads=4
    attnres compare --model.embedding-std 0.02 --out runs/small-embedding
    attnres compare residual block full --recipe recipes/kimi_linear.py --seeds 2

The first arm is the baseline. Arms of one seed share initial weights and the order of the data, so differences are
paired. Every run is a one-thread process with a folder of its own; stop it with Ctrl-C or in any other way, and the
same command goes on. Ends with a table, OUT/comparison.json and OUT/report.html.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console
from rich.table import Table

from attnres.analysis import depth_profile
from attnres.analysis.comparison import Comparison, compare_arms
from attnres.cli._depth_report import (
    arm_report,
    chosen_positions,
    print_line,
    provenance,
    token_texts,
    validation_tokens,
)
from attnres.cli._recipe import named_recipe
from attnres.cli._sweep_display import SweepDisplay
from attnres.data import Corpus, check_length, open_corpus
from attnres.errors import UsageError
from attnres.files import write_text
from attnres.lab.arms import arm_folder, arm_model
from attnres.report import ReportData, write_report
from attnres.train import RunConfig, load_recipe, load_run
from attnres.train.folder import RunFolder
from attnres.train.sweep import Job, default_workers, failures, require_done, run_jobs

ARMS = ("residual", "x0", "block", "full")
SEEDS = 5
DEFAULTS = RunConfig(steps=160, batch_size=4, evaluate_every=40, save_every=80, validation_tokens=32_768)
QUICK = dataclasses.replace(DEFAULTS, steps=48, evaluate_every=16, validation_tokens=16_384)
QUICK_SEEDS = 2


def command_for(arguments: list[str]) -> Callable[..., int]:
    """The command with the defaults of --quick or of a recipe, if they are among the arguments."""
    quick, recipe_file = "--quick" in arguments, named_recipe(arguments)
    defaults, name = (QUICK, "quick") if quick else (DEFAULTS, "compare")
    if recipe_file:
        if quick:
            raise UsageError("--quick and --recipe each say what a run is; give one of them")
        defaults, name = load_recipe(recipe_file), f"compare-{Path(recipe_file).stem}"
        model = dataclasses.replace(defaults.model, connection=DEFAULTS.model.connection, connection_options={})
        defaults = dataclasses.replace(defaults, model=model)  # the arms name the connections

    def command(
        arms: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="ARM")] = ARMS,
        out: Path = Path("runs") / name,
        seeds: int = QUICK_SEEDS if quick else SEEDS,
        workers: int = default_workers(),
        quick: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
        recipe: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None,
        *,
        config: Annotated[RunConfig, tyro.conf.arg(name="")] = defaults,
    ) -> int:
        """Compare.

        Args:
            arms: Connections to compare, each with options if it has any: NAME or NAME:OPTION=VALUE,OPTION=VALUE.
            out: The folder of the comparison.
            seeds: Paired seeds: seed, seed + 1, ..
            workers: Runs at a time, each with one thread.
            quick: A small comparison, in about a minute.
            recipe: A Python file with config = RunConfig(...), whose values become the defaults below.
        """
        return run(arms, config, out, seeds, workers)

    return command


def run(arms: Sequence[str], config: RunConfig, out: Path, seeds: int, workers: int) -> int:
    """Train what is not trained yet, then print the table and write the report. Returns the exit code."""
    if seeds < 1 or workers < 1:
        raise UsageError(f"seeds and workers must be at least 1, not {seeds} and {workers}")
    if len(set(arms)) < max(2, len(arms)):
        raise UsageError("give at least two arms, each once; the first is the baseline")
    if (config.model.connection, config.model.connection_options) != (DEFAULTS.model.connection, {}):
        raise UsageError("the arms name the connections: write them as NAME:OPTION=VALUE instead of --model.connection")
    models = {arm: arm_model(arm, config.model) for arm in arms}
    jobs = [
        Job(
            f"{arm}, seed {seed}",
            dataclasses.replace(config, model=models[arm], seed=seed),
            arm_folder(out, arm) / f"seed-{seed}",
        )
        for seed in range(config.seed, config.seed + seeds)
        for arm in arms
    ]
    console, began = Console(), time.monotonic()
    with console.status("opening the corpus"):  # before any worker, so that bad text is one error and not many
        corpus = open_corpus(config.data)
        check_length(corpus, config.model.context)
    print_line(
        console,
        f"{len(arms)} connections, {config.steps} steps, seeds per connection: {seeds}, {workers} at a time: {out}",
    )
    arm_of = {job.name: arm for job, arm in zip(jobs, list(arms) * seeds, strict=True)}
    try:
        with SweepDisplay(console, jobs, arm_of) as display:
            states = run_jobs(jobs, workers, display.watch)
    except KeyboardInterrupt:
        print("attnres: stopped; the runs are saved, and the same command goes on with them", file=sys.stderr)
        return 130
    require_done(states)
    finished: dict[str, dict[int, Path]] = {arm: {} for arm in arms}
    for state in states:
        if state.status == "done":
            finished[arm_of[state.job.name]][state.job.config.seed] = state.job.folder
    rows = compare_arms(summaries(finished, corpus.bytes_per_token), baseline=arms[0])
    console.print(table(rows, config))
    record = {"arms": [dataclasses.asdict(row) for row in rows], "failed": failures(states).splitlines()}
    write_text(out / "comparison.json", json.dumps(record, indent=1) + "\n")
    with console.status("reading the depth of every connection"):
        page = write_report(report(finished, rows, config, corpus), out)
    if failed := failures(states):
        print(f"attnres: not every run was finished; the table is without it\n{failed}", file=sys.stderr)
    print_line(console, f"{time.monotonic() - began:.0f} s. Report: {page}")
    return 1 if failed else 0


def summaries(finished: Mapping[str, Mapping[int, Path]], bytes_per_token: float) -> dict[str, dict[int, dict]]:
    """The runs' summaries by arm and seed, losses in nats per byte: the same for every tokenizer."""
    read: dict[str, dict[int, dict]] = {}
    for arm, runs in finished.items():
        read[arm] = {seed: RunFolder(folder).summary() or {} for seed, folder in runs.items()}
        for summary in read[arm].values():
            summary["validation_loss"] /= bytes_per_token
    return read


def table(rows: Sequence[Comparison], config: RunConfig) -> Table:
    """The result, one arm per line."""
    shown = Table(title=f"after {config.steps} steps of {tokens_per_step(config):,} tokens")
    shown.add_column("connection")
    for heading in ("validation\nnats/byte", f"difference to\n{rows[0].arm}", "standard\nerror"):
        shown.add_column(heading, justify="right")
    for heading in ("step\ntime", "peak\nmemory", "seeds"):
        shown.add_column(heading, justify="right")
    for row in rows:
        shown.add_row(
            row.arm,
            _number(row.validation_loss, ".4f"),
            _number(row.difference, "+.4f"),
            _number(row.difference_error, ".4f"),
            _number(row.step_time_ratio, ".2f", "x"),
            _number(row.peak_memory_ratio, ".2f", "x"),
            str(row.seeds),
        )
    return shown


def _number(value: float | None, form: str, unit: str = "") -> str:
    return "" if value is None else f"{value:{form}}{unit}"


def tokens_per_step(config: RunConfig) -> int:
    return config.batch_size * config.accumulate * config.model.context


def report(
    finished: Mapping[str, Mapping[int, Path]], rows: Sequence[Comparison], config: RunConfig, corpus: Corpus
) -> ReportData:
    """The page's data: what the table says, every curve, and the depth of each arm's first run."""
    tokens = validation_tokens(corpus, config)
    positions = chosen_positions(tokens)
    arms, record = [], None
    for row in rows:
        runs, profile = finished[row.arm], None
        if runs:
            run = load_run(runs[min(runs)])
            profile = depth_profile(run.model, tokens, positions)
            record = RunFolder(run.folder).record()
        arms.append(arm_report(row.arm, runs, profile, row, corpus.bytes_per_token))
    return ReportData(
        title="Residual connections side by side",
        subtitle=f"{config.model.layers} transformer layers of width {config.model.dim}, {config.steps} steps of "
        f"{tokens_per_step(config):,} tokens, seeds per connection: {max(row.seeds for row in rows)}, "
        f"embedding std {config.model.embedding_std:g}",
        arms=arms,
        provenance=provenance(record or {}),
        tokens=token_texts(tokens, positions, corpus.tokenizer),
        unit="nats per byte",
        curve_label="validation loss",
    )
