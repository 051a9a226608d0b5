"""Ask trained runs everything, and record how often they are right."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import tyro

from attnres.data import open_corpus, validation_batches
from attnres.errors import UsageError
from attnres.lab.experiment import Ended, Progress
from attnres.lab.outcome import run_record_of
from attnres.lab.probes.record import Asked, ProbedRun, ProbesRecord
from attnres.lab.probes.tasks import Task, tasks
from attnres.lab.record import header
from attnres.lab.trained import Trained, find_runs, open_runs, refuse_other_corpus
from attnres.model import Transformer
from attnres.train import load_run

BASELINE = "residual"
BATCH = 16
"""Windows at a time."""


@dataclass(frozen=True)
class Options:
    """What `attnres probe` asks for."""

    folders: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN")] = ()
    """Run folders."""
    runs: Path | None = None
    """A folder of which every run inside is taken."""
    tokens: int = 65_536
    """Held-out tokens to ask on, the same ones for every run: whole windows, at least one."""


@dataclass(frozen=True)
class Plan:
    options: Options
    runs: Sequence[Trained]

    @property
    def done(self) -> list[Trained]:
        return [run for run in self.runs if run.status == "done"]


def plan(options: Options, out: Path) -> Plan:
    """Raises UsageError where there is no run that is finished, or one that does not read bytes."""
    given = [*options.folders, *([] if options.runs is None else [options.runs])]
    if not given:
        raise UsageError("give run folders, or a folder that holds some with --runs")
    if options.tokens < 1:
        raise UsageError(f"tokens must be at least 1, not {options.tokens}")
    planned = Plan(options, open_runs(find_runs(given)))
    if not planned.done:
        first = planned.runs[0]
        raise UsageError(f"no run is finished: {first.folder.path} is {first.status}")
    if (tokenizer := planned.done[0].config.data.tokenizer) != "bytes":
        raise UsageError(f"the probes ask for bytes, and these runs read {tokenizer}; give runs that read bytes")
    return planned


def run(plan: Plan, file: Path, progress: Progress) -> Ended[ProbesRecord]:
    config = plan.done[0].config
    with progress.during("opening the corpus"):
        corpus = open_corpus(config.data)
    for one in plan.done:
        refuse_other_corpus(one, corpus)
    text = np.concatenate(list(validation_batches(corpus, config.model.context, BATCH, plan.options.tokens)))
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
    run_records = [run_record_of(one.folder.path) for one in plan.done]
    arms = [one.arm for one in plan.done]
    record = ProbesRecord(
        **header(
            run_records[0],
            time.perf_counter() - began,
            [run_record["versions"]["commit"] for run_record in run_records],
        ),
        tasks=tuple(
            Asked(name=task.name, what=task.what, places=int(task.asked.sum()), commonest=commonest(task))
            for task in asked
        ),
        tokens=text[:, 1:].size,
        baseline=BASELINE if BASELINE in arms else arms[0],
        runs=tuple(runs),
    )
    left_out = [f"left out: {one.folder.path} ({one.status})" for one in plan.runs if one.status != "done"]
    return Ended(record, notes=left_out)


@torch.no_grad()
def shares_right(model: Transformer, asked: Sequence[Task]) -> tuple[float, ...]:
    """For each task the share of places at which the most probable answer is the right one."""
    right = dict.fromkeys((task.name for task in asked), 0)
    for windows in {id(task.windows): task.windows for task in asked}.values():  # one pass for all that is asked there
        for first in range(0, len(windows), BATCH):
            tokens = torch.from_numpy(windows[first : first + BATCH])
            probabilities = model(tokens[:, :-1]).softmax(-1)
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
