"""Try which model types of transformers take a connection.

    attnres models
    attnres models llama bert mamba
    attnres models --out models.json

Makes a small random model of each type, attaches to it, saves and loads it, and compares the logits with the plain
model's; a refusal is one line that says what in the model's code is in the way. Needs: pip install -e '.[hf]'.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, get_args

import tyro

from attnres.cli._checks import check_installed, check_output_file
from attnres.cli._tables import Output, print_line, print_table
from attnres.cli._terminal import Terminal, working
from attnres.texttable import TextTable


def command(
    types: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="TYPE")] = (),
    out: Path | None = None,
) -> int:
    """Models.

    Args:
        types: Model types to try; all that have a class for language, masked tokens or images when none is given.
        out: Also write what came of each to this JSON file.
    """
    check_output_file("--out", out, ("connection", "rows"))
    check_installed("models", "hf", "transformers")
    console = Output()
    with working(console, "importing transformers"):
        from attnres.hf.survey import Outcome, Trial, known_types, survey, write_record
    chosen = types or tuple(known_types())
    trials: list[Trial] = []
    with Terminal(console).bar(len(chosen)) as advance:
        for trial in survey(chosen):
            trials.append(trial)
            advance(1, f"{trial.model_type}: {trial.outcome}")
    by_outcome = {outcome: [t for t in trials if t.outcome == outcome] for outcome in get_args(Outcome)}
    for outcome, found in by_outcome.items():
        if found and outcome == "attaches":
            rows = tuple((t.model_type, t.auto_class, str(t.sublayers), f"{t.difference:.1e}") for t in found)
            columns = ("type", "class", "sublayers of 4 layers", "largest difference of a logit")
            print_table(console, TextTable(outcome, columns, rows))
        elif found:
            print_table(console, TextTable(outcome, ("type", "why"), tuple((t.model_type, t.why) for t in found)))
    counts = ", ".join(f"{len(found)} {outcome}" for outcome, found in by_outcome.items() if found)
    print_line(console, f"{len(trials)} model types: {counts}")
    if out is not None:
        write_record(out, trials)
    return 1 if by_outcome["failed"] else 0
