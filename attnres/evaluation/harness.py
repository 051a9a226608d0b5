"""lm-eval's tasks on one model or on two. lm-eval is imported on first use, because that takes seconds."""

from __future__ import annotations

import logging
import math
import os
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from attnres.errors import UsageError, first_line, install_command
from attnres.files import RUN, folder_kind
from attnres.train import load_run

SEED = 1234
"""The seed of the examples before a question, as lm-eval's own command has it."""
BOOTSTRAPS = 1000
"""Resamples where lm-eval's own standard error is a bootstrap."""
GROUPS = 200
"""Groups of documents in a jackknife: its own relative error is then about 5%."""


@dataclass(frozen=True)
class Score:
    """One metric of one task."""

    task: str
    metric: str
    """With its filter behind a comma, where that is not `none`."""
    higher_is_better: bool | None
    documents: int
    value: float
    error: float | None
    """Standard error: lm-eval's, or by `jackknife` where it gives none; None for a single document."""
    samples: tuple[Any, ...]
    """What each document contributes: a number, or parts of one, such as (nats, bytes)."""
    aggregate: Callable[[Sequence[Any]], float]
    """What makes the value from the samples: often the mean."""


@dataclass(frozen=True)
class Difference:
    """A score less the other model's on the same documents."""

    value: float
    error: float | None
    """Standard error, paired by document: of a mean, that of the mean of the documents' differences."""


def load_tasks(names: Sequence[str]) -> Any:
    """lm-eval's tasks, groups or tags by these names, or from these yaml files. Raises UsageError."""
    files = [name for name in names if name.endswith((".yaml", ".yml"))]
    if missing := [name for name in files if not Path(name).is_file()]:
        raise UsageError(f"there is no task file {missing[0]}; check the path")
    logging.getLogger("lm_eval").setLevel(logging.ERROR)  # every step of its own is INFO or WARNING
    try:
        from lm_eval.tasks import TaskManager
    except ImportError:
        raise UsageError(f"evaluation needs the lm-eval library: {install_command('eval')}") from None
    manager = TaskManager(include_defaults=len(files) < len(names))
    unknown = [name for name in names if name not in files and name not in manager.task_index]
    if unknown:
        raise UsageError(
            f"lm-eval has no task {', '.join(map(repr, unknown))}; `lm-eval ls tasks` lists them, or give a .yaml file"
        )
    try:
        return manager.load(list(names))
    except Exception as error:  # a task may run any code and read any data
        raise UsageError(f"cannot load the tasks: {' '.join(str(error).split()) or type(error).__name__}") from error


def evaluate_model(
    path: str | Path, tasks: Any, batch_size: int = 8, shots: int | None = None, limit: int | None = None
) -> list[Score]:
    """Score a model on tasks of lm-eval.

    Args:
        path: a run folder, or a folder of transformers (attached or plain).
        tasks: what `load_tasks` returned.
        batch_size: of lm-eval's requests.
        shots: examples before each question; a task whose own settings have none keeps none.
        limit: only so many documents of each task, the first ones.
    """
    from lm_eval.evaluator import evaluate

    model = _open_model(Path(path), batch_size)
    for task in tasks["tasks"].values():
        fixed = task.get_config("num_fewshot")
        if fixed != 0:  # a task that has none has its reason
            task.set_config(key="num_fewshot", value=(fixed or 0) if shots is None else shots)
        task.set_fewshot_seed(seed=SEED)
    torch.manual_seed(SEED)
    # Its bootstrap would fork a process per core from this one, whose torch may hold threads.
    os.environ["DISABLE_MULTIPROC"] = "1"
    # Not `simple_evaluate`, which spends seconds on a report of the machine.
    results = evaluate(model, tasks, limit=limit, bootstrap_iters=BOOTSTRAPS)
    assert results is not None
    return [score for name, task in tasks["tasks"].items() for score in _scores(name, task, dict(results))]


def compare_models(scores: Sequence[Score], others: Sequence[Score]) -> list[Difference | None]:
    """Return for each score its difference to the other model's; None where that has no such score."""
    known = {(score.task, score.metric): score for score in others}
    return [
        _difference(score, known[key]) if (key := (score.task, score.metric)) in known else None for score in scores
    ]


def _difference(score: Score, other: Score) -> Difference:
    if len(score.samples) != len(other.samples):
        return Difference(score.value - other.value, None)
    pairs = list(zip(score.samples, other.samples, strict=True))

    def aggregate(chosen: Sequence[Any]) -> float:
        ours, theirs = zip(*chosen, strict=True)
        return score.aggregate(ours) - other.aggregate(theirs)

    return Difference(score.value - other.value, jackknife(aggregate, pairs))


def jackknife(aggregate: Callable[[Sequence[Any]], float], samples: Sequence[Any]) -> float | None:
    """Standard error of aggregate(samples), by leaving out one of at most GROUPS groups of samples at a time.

    With as many groups as samples, that of a mean is exactly stdev / sqrt(n). None of one sample, or where all text
    is in one group. Source: Tukey 1958; Shao & Tu 1995.
    """
    groups = min(len(samples), GROUPS)
    if groups < 2:
        return None
    try:
        without = [aggregate([s for i, s in enumerate(samples) if i % groups != group]) for group in range(groups)]
    except ZeroDivisionError:
        return None
    return math.sqrt((groups - 1) * statistics.pvariance(without))


def check_model(path: Path) -> None:
    """Raise UsageError if the folder holds neither a run with a checkpoint nor a model of transformers."""
    if not path.is_dir():
        raise UsageError(f"{path}: no such folder; give a run's, or a model's of transformers")
    if folder_kind(path) in ("", RUN):
        load_run(path)


def _open_model(path: Path, batch_size: int) -> Any:
    """A language model of lm-eval from a folder."""
    from attnres.evaluation.run_lm import RunLM

    device = "cuda" if torch.cuda.is_available() else "cpu"
    kind = folder_kind(path)
    if kind == RUN:
        return RunLM(load_run(path), batch_size, torch.device(device))
    from lm_eval.models.huggingface import HFLM
    from transformers import AutoTokenizer

    if kind == "kimi_k3":
        from attnres.kimi_k3 import load as load_model
    else:
        from attnres.hf.causal import load_causal as load_model
    model: Any = load_model(path).eval()
    try:
        tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True)
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: its tokenizer cannot be loaded: {first_line(error)}") from error
    _name_separator(tokenizer, model.config, path)
    wrap: Any = HFLM  # its decorator hides what it takes
    return wrap(pretrained=model.to(device), tokenizer=tokenizer, batch_size=batch_size, device=device)


def _name_separator(tokenizer: Any, config: Any, path: Path) -> None:
    """Give a tokenizer its eos token where it names none: lm-eval begins texts with it, where there is no bos token.

    It is the configuration's, if the tokenizer knows that id as a special token: transformers' default ids stand in
    many a config.json and mean any piece of text. Else it is the bos token.
    """
    if tokenizer.eos_token is not None:
        return
    named = config.get_text_config().eos_token_id
    special = {id: str(token) for id, token in tokenizer.added_tokens_decoder.items() if token.special}
    ends = [special[id] for id in (named if isinstance(named, list) else [named]) if id in special]
    tokenizer.eos_token = next(iter(ends), tokenizer.bos_token)
    if tokenizer.eos_token is None:
        raise UsageError(
            f"{path}: its tokenizer names no eos or bos token, which separates texts; "
            'name one in tokenizer_config.json, such as {"eos_token": "<|endoftext|>"}'
        )


def _scores(name: str, task: Any, results: dict[str, Any]) -> list[Score]:
    row, better = results["results"][name], results["higher_is_better"].get(name, {})
    scores = []
    for key, value in row.items():
        metric, comma, chosen = key.partition(",")
        if not comma or metric.endswith("_stderr"):
            continue
        samples = tuple(sample[metric] for sample in results["samples"][name] if sample["filter"] == chosen)
        aggregate = task.aggregation()[metric]
        error = row.get(f"{metric}_stderr,{chosen}")
        if not isinstance(error, float):  # "N/A"
            error = jackknife(aggregate, samples)
        title = metric if chosen == "none" else key
        scores.append(Score(name, title, better.get(metric), len(samples), float(value), error, samples, aggregate))
    return scores
