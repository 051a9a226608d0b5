"""Evaluate a model on lm-eval's tasks, beside its plain twin.

A model is a run's folder, or a folder of transformers' save_pretrained: attached to a connection or plain. A task is a
name that lm-eval knows, or a .yaml file of your own, whose data may be local:

    attnres eval runs/compare/block/seed-0 --tasks lambada_openai piqa
    attnres eval runs/compare/block/seed-0 --beside runs/compare/residual/seed-0 --tasks tasks/brackets.yaml
    attnres eval converted/ --beside original/ --tasks arc_easy --shots 5 --limit 200 --out scores.json

Scores come with their standard errors. With --beside, differences are paired by document, so that their standard error
is usually far smaller than the scores' own. Needs: pip install -e '.[eval]'.
"""

from __future__ import annotations

import platform
import sys
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console
from rich.table import Table

from attnres.errors import UsageError
from attnres.evaluation import Score, compare_models, evaluate_model, load_tasks
from attnres.evaluation.harness import Difference
from attnres.files import write_json

ARROWS = {True: "↑", False: "↓", None: ""}


def command(
    model: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN_OR_MODEL")],
    tasks: tuple[str, ...],
    beside: Path | None = None,
    shots: int | None = None,
    limit: int | None = None,
    batch_size: int = 8,
    out: Path | None = None,
) -> int:
    """Evaluate.

    Args:
        model: The folder of a run, or of a model of transformers.
        tasks: Names of lm-eval's tasks, or .yaml files.
        beside: The folder of another model to compare it with, such as its plain twin.
        shots: Examples before each question, where the task does not fix that.
        limit: Only this many documents of each task.
        batch_size: Sequences at a time.
        out: A JSON file for the scores.
    """
    for name, value, least in (("shots", shots, 0), ("limit", limit, 1), ("batch_size", batch_size, 1)):
        if value is not None and value < least:
            raise UsageError(f"{name} must be at least {least}, not {value}")
    for folder in filter(None, (model, beside)):
        if not folder.is_dir():
            raise UsageError(f"{folder}: no such folder; give a run's, or a model's of transformers")
    console = Console()
    with console.status("loading the tasks"):
        loaded = load_tasks(tasks)
    scores = evaluate_model(model, loaded, batch_size, shots, limit)
    others = evaluate_model(beside, loaded, batch_size, shots, limit) if beside else []
    differences = compare_models(scores, others)
    console.print(_table(scores, others, differences, model, beside))
    if out:
        settings = {
            "model": str(model),
            "beside": beside and str(beside),
            "tasks": tasks,
            "shots": shots,
            "limit": limit,
        }
        write_json(out, _record(settings, scores, others, differences))
        console.print(f"scores: {out}", highlight=False, soft_wrap=True, markup=False)
    return 0


def _table(
    scores: list[Score], others: list[Score], differences: list[Difference | None], model: Path, beside: Path | None
) -> Table:
    theirs = {(other.task, other.metric): other for other in others}
    table = Table(caption="value ± standard error; ↑ higher is better, ↓ lower is better", caption_justify="left")
    table.add_column("task", overflow="fold")
    table.add_column("metric", overflow="fold")
    table.add_column("documents", justify="right")
    for heading in [str(model), *([str(beside), "difference"] if beside else [])]:
        table.add_column(heading, justify="right", overflow="fold")
    for score, difference in zip(scores, differences, strict=True):
        row = [score.task, f"{score.metric} {ARROWS[score.higher_is_better]}", str(score.documents), _number(score)]
        if difference:
            row += [_number(theirs[score.task, score.metric]), _number(difference, "+")]
        table.add_row(*row)
    return table


def _number(entry: Score | Difference, sign: str = "") -> str:
    return f"{entry.value:{sign}.4f}" + ("" if entry.error is None else f" ± {entry.error:.4f}")


def _record(
    settings: dict[str, Any], scores: list[Score], others: list[Score], differences: list[Difference | None]
) -> dict[str, Any]:
    def plain(entry: Score | Difference | None) -> dict[str, Any] | None:
        return entry and {name: value for name, value in vars(entry).items() if name not in ("samples", "aggregate")}

    return {
        "command": " ".join(["attnres", *sys.argv[1:]]),
        "date": date.today().isoformat(),
        "versions": {name: version(name) for name in ("attnres", "lm-eval", "torch", "transformers")},
        "machine": platform.platform(),
        **settings,
        "scores": [plain(score) for score in scores],
        "others": [plain(score) for score in others],
        "differences": [plain(difference) for difference in differences],
    }
