"""Evaluate a model on lm-eval's tasks, alone or against its plain twin.

A model is a run's folder, or a folder that save_pretrained wrote, with a connection or plain. A task is a
name that lm-eval knows, or a .yaml file of your own, whose data may be local:

    attnres eval runs/compare/block/seed-0 --tasks lambada_openai piqa
    attnres eval runs/compare/block/seed-0 --beside runs/compare/residual/seed-0 --tasks tasks/brackets.yaml
    attnres eval converted/ --beside original/ --tasks arc_easy --shots 5 --limit 200 --out scores.json

The loss on texts of your own, in bits per byte, is a task, too. Where held.jsonl has a line {"text": ..} for each:

    task: held
    dataset_path: json
    dataset_kwargs: {data_files: {test: held.jsonl}}
    test_split: test
    output_type: loglikelihood_rolling
    doc_to_text: ""
    doc_to_target: "{{text}}"
    metric_list: [{metric: bits_per_byte}]

Scores come with their standard errors. With --beside, differences are paired by document, so that their standard error
is usually far smaller than the scores' own. Needs: pip install 'attnres[eval]'.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

from attnres.cli._checks import check_installed, check_new_file
from attnres.cli._tables import Output, print_line, print_table
from attnres.cli._terminal import working
from attnres.files import write_json


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
        shots: Examples before each question; a task whose own settings have none keeps none.
        limit: Only this many documents of each task.
        batch_size: Sequences at a time.
        out: A new JSON file for the scores.
    """
    check_installed("eval", "eval", "lm_eval")
    from attnres.evaluation import check_model, compare_models, evaluate_model, load_tasks
    from attnres.evaluation.record import score_record, score_table

    asked = {"model": str(model), "beside": beside and str(beside)}
    asked |= {"tasks": list(tasks), "shots": shots, "limit": limit}
    check_new_file("--out", out)
    models = [model] if beside is None else [model, beside]
    for folder in models:
        check_model(folder)
    console = Output()
    with working(console, "loading lm-eval and the tasks"):
        loaded = load_tasks(tasks)
    found = []
    for folder in models:
        print_line(console, f"{folder}: scoring ..")  # lm-eval's own bars come once it has made its requests
        found.append(evaluate_model(folder, loaded, batch_size, shots, limit))
    scores, *rest = found
    others = rest[0] if rest else []
    differences = compare_models(scores, others)
    print_table(console, score_table(scores, others, differences, list(map(str, models))))
    if out:
        write_json(out, score_record(asked, scores, others, differences))
        print_line(console, f"scores: {out}")
    return 0
