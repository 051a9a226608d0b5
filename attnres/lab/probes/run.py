"""Ask trained runs everything, and record how often they are right."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from attnres.data import validation_batches
from attnres.errors import UsageError
from attnres.lab.experiment import Ended, Progress
from attnres.lab.probes.options import Options
from attnres.lab.probes.record import Asked, ProbedRun, ProbesRecord
from attnres.lab.probes.tasks import Task, tasks
from attnres.lab.trained import Plan
from attnres.lab.trained import plan as plan_runs
from attnres.model import Transformer
from attnres.train import load_run

BYTES = 256
BATCH = 16
"""Windows at a time."""


def plan(options: Options, out: Path) -> Plan:
    """Raises UsageError where there is no run that is finished, or one that does not read bytes."""
    planned = plan_runs(options, out)
    if (tokenizer := planned.done[0].config.data.tokenizer) != "bytes":
        raise UsageError(f"the probes ask for bytes, and these runs read {tokenizer}; give runs that read bytes")
    return planned


def run(plan: Plan, file: Path, progress: Progress) -> Ended:
    corpus, context = plan.open_corpus(progress), plan.done[0].config.model.context
    text = np.concatenate(list(validation_batches(corpus, context, BATCH, plan.options.tokens)))
    asked = [task for task in tasks(text) if task.asked.any()]
    began = time.perf_counter()
    runs = []
    with progress.bar(len(plan.runs)) as advance:
        for one in plan.runs:
            named = {"arm": one.arm, "seed": one.config.seed, "status": one.status}
            if one.status == "done":
                model = load_run(one.folder.path).model
                right = shares_right(model, asked)
                loss = (one.folder.summary() or {})["validation_loss"] / corpus.bytes_per_token
                runs.append(ProbedRun(**named, right=right, loss=loss))
            else:
                runs.append(ProbedRun(**named))
            advance(1, f"{one.arm}, seed {one.config.seed}")
            progress.log(f"{one.arm}, seed {one.config.seed}: {len(runs)} of {len(plan.runs)} runs")
    record = ProbesRecord(
        **plan.header(time.perf_counter() - began),
        tasks=tuple(
            Asked(name=task.name, what=task.what, places=int(task.asked.sum()), commonest=commonest(task))
            for task in asked
        ),
        tokens=text[:, 1:].size,
        baseline=plan.baseline,
        runs=tuple(runs),
    )
    return Ended(record, notes=plan.left_out)


@torch.no_grad()
def shares_right(model: Transformer, asked: Sequence[Task]) -> tuple[float, ...]:
    """For each task the share of places at which the most probable answer is the right one."""
    right = dict.fromkeys((task.name for task in asked), 0)
    for windows in {id(task.windows): task.windows for task in asked}.values():  # one pass for all that is asked there
        for first in range(0, len(windows), BATCH):
            tokens = torch.from_numpy(windows[first : first + BATCH])
            probabilities = model(tokens[:, :-1]).softmax(-1)[..., :BYTES]  # a vocabulary may have room for more
            for task in asked:
                if task.windows is windows:
                    places = torch.from_numpy(task.asked[first : first + BATCH])
                    right[task.name] += _right(probabilities[places], tokens[:, 1:][places], task)
    return tuple(right[task.name] / int(task.asked.sum()) for task in asked)


def _right(probabilities: torch.Tensor, targets: torch.Tensor, task: Task) -> int:
    """How many are right, of probabilities [place, 256] and targets [place]."""
    classes = torch.from_numpy(task.classes)
    answers = torch.nn.functional.one_hot(classes + 1)[:, 1:].float()  # [byte, answer]; no answer, no column
    return int(((probabilities @ answers).argmax(-1) == classes[targets]).sum())


def commonest(task: Task) -> float:
    """How often the commonest answer would be right."""
    return float(np.bincount(task.classes[task.windows[:, 1:][task.asked]]).max() / task.asked.sum())
