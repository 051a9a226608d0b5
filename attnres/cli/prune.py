"""Switch off each sublayer of trained models in turn and report the loss it adds: are layers redundant?

    attnres prune runs/compare/residual/seed-0 runs/compare/block/seed-0
    attnres prune --runs runs/dynamics
    attnres prune --runs runs/compare --tokens 65536 --out runs/prune-long

A sublayer that is switched off returns zero; all else stays, and nothing is trained again. For AttnRes that is the same
as taking the source out of the softmax: what mass a zero takes only scales the mixture, and sublayers begin with a
norm. Runs of one connection and several seeds make one row, and differences to the residual (or the first connection,
where there is none) are paired by seed. Runs that are not finished, or that ended no lower than they began, are marked
and left out. What is measured stays in prune.json in every run's folder, so after Ctrl-C the same command goes on.
Ends with tables, OUT/results.html and OUT/figures/; `attnres report OUT` draws them again from RECORD.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from attnres.cli._depth_report import print_line
from attnres.cli._lab_page import draw_page, record_path
from attnres.cli._tables import print_table
from attnres.data import Corpus, open_corpus
from attnres.errors import UsageError
from attnres.lab.prune import Trained, find_runs, open_runs, prune_tables, pruned, refuse_other_corpus
from attnres.lab.record import Record, header, read_record, write_record

BASELINE = "residual"


def command(
    folders: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN")] = (),
    runs: Path | None = None,
    out: Path = Path("runs/prune"),
    record: Path | None = None,
    tokens: int = 16_384,
) -> int:
    """Prune.

    Args:
        folders: Run folders.
        runs: A folder of which every run inside is taken.
        out: The folder of the page and its figure.
        record: The JSON file for everything that was measured; OUT/prune.json if not given.
        tokens: Validation tokens to measure on, the same ones for every run: whole sequences, at least one.
    """
    given = [*folders, *([] if runs is None else [runs])]
    if not given:
        raise UsageError("give run folders, or a folder that holds some with --runs")
    if tokens < 1:
        raise UsageError(f"tokens must be at least 1, not {tokens}")
    trained = open_runs(find_runs(given))
    left_out = [run for run in trained if run.status != "done"]
    done = [run for run in trained if run.status == "done"]
    if not done:
        raise UsageError(f"no run is finished: {left_out[0].folder.path} is {left_out[0].status}")
    record = record_path("prune", record, out)
    console = Console()
    with console.status("opening the corpus"):
        corpus = open_corpus(done[0].config.data)
    for run in done:
        refuse_other_corpus(run, corpus)
    written = _record(trained, _measured(console, done, corpus, tokens))
    write_record(record, written)
    for table in prune_tables(written):
        print_table(console, table)
    for run in left_out:
        print_line(console, f"left out: {run.folder.path} ({run.status})")
    page = draw_page(console, {"prune": read_record(record, "prune")}, out)
    print_line(console, f"Record: {record}. Report: {page}")
    return 0


def _measured(console: Console, done: Sequence[Trained], corpus: Corpus, tokens: int) -> dict[Path, Record]:
    """By run folder. One line per run where the output is no terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    measured = {}
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        whole = progress.add_task("", total=sum(run.config.model.sites for run in done))
        for run in done:
            name = f"{run.arm}, seed {run.config.seed}"
            progress.update(whole, description=name)
            measured[run.folder.path] = pruned(run, corpus, tokens, lambda part: progress.advance(whole, part))
            if not console.is_terminal:
                print_line(console, f"{name}: {len(measured)} of {len(done)} runs")
    return measured


def _record(trained: Sequence[Trained], measured: dict[Path, Record]) -> Record:
    recorded = []
    for run in trained:
        result = measured.get(run.folder.path, {})
        numbers = {name: result[name] for name in ("loss", "added") if name in result}
        recorded.append({"arm": run.arm, "seed": run.config.seed, "status": run.status, **numbers})
    done = [run["arm"] for run in recorded if run["status"] == "done"]
    run_records = [run.folder.record() or {} for run in trained if run.status == "done"]
    commits = [run_record["versions"]["commit"] for run_record in run_records]
    hours = sum(result["seconds"] for result in measured.values()) / 3600
    return header("prune", shlex.join(["attnres", *sys.argv[1:]]), run_records[0], hours, commits) | {
        "tokens": next(iter(measured.values()))["tokens"],
        "baseline": BASELINE if BASELINE in done else done[0],
        "runs": recorded,
    }
