"""Show what depth does in a trained run: one HTML page and its figures.

    attnres inspect runs/compare/block/seed-0
    attnres inspect RUN --prompt "def add(a, b): return a + b"
    attnres inspect RUN --out pages/block

Without a prompt it reads a few sequences of the run's own validation text. Prints the strongest depth sinks, and
writes OUT/report.html and OUT/figures/.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from attnres.analysis import depth_profile
from attnres.cli._depth_report import (
    arm_report,
    chosen_positions,
    print_line,
    prompt_tokens,
    provenance,
    token_texts,
    validation_tokens,
)
from attnres.data import open_corpus
from attnres.report import ReportData, write_report
from attnres.train import load_run
from attnres.train.folder import RunFolder


def command(
    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")],
    prompt: str | None = None,
    out: Path | None = None,
    best: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
) -> int:
    """Inspect.

    Args:
        run: The run's folder.
        prompt: Text to read instead of the validation set.
        out: Where to write; the folder `report` of the run when not given.
        best: Use the checkpoint of lowest validation loss instead of the newest.
    """
    trained = load_run(run, best)
    console = Console()
    with console.status("reading the depth of the model"):
        record = RunFolder(run).record() or {}
        if prompt is None:
            tokens = validation_tokens(open_corpus(trained.config.data), trained.config)
        else:
            tokens = prompt_tokens(trained, prompt)
        positions = chosen_positions(tokens)
        profile = depth_profile(trained.model, tokens, positions)
        name = trained.config.model.connection
        page = write_report(
            ReportData(
                title=f"Depth in {run.name}: {name}",
                subtitle=f"{trained.config.model.layers} transformer layers of width {trained.config.model.dim} after "
                f"{trained.step} steps, on {'its validation text' if prompt is None else 'a prompt'}",
                arms=[arm_report(name, {trained.config.seed: run}, profile, None, record["corpus"]["bytes_per_token"])],
                provenance=provenance(record),
                tokens=token_texts(tokens, positions, trained.tokenizer),
                unit="nats per byte",
                curve_label="validation loss",
            ),
            run / "report" if out is None else out,
        )
    for source, share in profile.sinks():
        print_line(console, f"{source} has {share:.0%} of the weight of the sites that can see it, on average")
    print_line(console, f"Report: {page}")
    return 0
