"""All arms of one of the ladder's sizes at once on a GPU, at the rates that the record's grid gives them.

    python recipes/ladder/at_once.py runs/ladder-16 results/ladder-16.json 16x80@10 0 1 2
    python recipes/ladder/at_once.py runs/ladder-16 results/ladder-16.json 16x64@10 check     # half and twice the rate

A model this small leaves most of a GPU idle, and launching its kernels takes longer than they do. Here the passes of a
step and of an evaluation are CUDA graphs, and each run has a thread and a stream that replay its own; all else is the
trainer's. What is done is left out, what was stopped goes on; `attnres scaling` with the same --out finds the runs.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path

import torch
from torch import Tensor

from attnres.bench.graphs import captured
from attnres.data import Corpus, open_corpus
from attnres.errors import UsageError
from attnres.lab.record import read_record
from attnres.lab.scaling.plan import DEFAULTS, Options, plan
from attnres.lab.scaling.rates import check_runs, chosen_rates, seed_runs
from attnres.lab.scaling.record import ScalingRecord
from attnres.train import RunConfig, loop, train
from attnres.train.folder import RunFolder, fit_vocabulary
from attnres.train.loop import RunStopped
from attnres.train.sweep import Job
from attnres.train.trainer import Trainer, token_losses


class ReplayedTrainer(Trainer):
    """A trainer of one batch per step whose passes are CUDA graphs; on a CPU they are the passes themselves."""

    def __init__(self, config: RunConfig, corpus: Corpus, resumes: bool = False) -> None:
        super().__init__(config, corpus, resumes)
        shape = (config.batch_size, config.model.context + 1)
        self._tokens = torch.zeros(shape, dtype=torch.int64, device=self.device)
        self._leaves = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        self._pass = captured(self._forward_backward, self.device)
        self._evaluation = captured(self._losses, self.device)

    def forward_backward(self, batches: list[Tensor]) -> float:
        (tokens,) = batches
        self._tokens.copy_(tokens)
        self._pass()
        for leaf, gradient in zip(self._leaves, self._gradients, strict=True):
            leaf.grad = gradient
        return self._loss.item()

    def total_loss(self, tokens: Tensor) -> tuple[float, float]:
        if tokens.shape != self._tokens.shape:
            return super().total_loss(tokens)
        self._tokens.copy_(tokens)
        self._evaluation()
        return self._total.item(), tokens[:, 1:].numel()

    def _forward_backward(self) -> None:
        with self._autocast():
            loss = token_losses(self.model, self._tokens).mean()
        self._gradients = torch.autograd.grad(loss, self._leaves, allow_unused=True)
        self._loss = loss.detach()

    @torch.no_grad()
    def _losses(self) -> None:
        with self._autocast():
            self._total = token_losses(self.model, self._tokens).double().sum()


def train_at_once(jobs: Sequence[Job]) -> list[float]:
    """Train all of them in threads; return their validation losses.

    Everything is captured before anything runs: nothing else may reach the GPU meanwhile.
    """
    corpus = open_corpus(jobs[0].config.data)
    trainers = {}
    for job in jobs:
        config = fit_vocabulary(job.config, corpus.vocab_size)
        trainers[repr(config)] = ReplayedTrainer(config, corpus)
        print(f"ready: {job.name}", flush=True)

    def train_one(job: Job) -> float:
        with torch.cuda.stream(torch.cuda.Stream()) if on_gpu else nullcontext():
            loss = train(job.config, job.folder)["validation_loss"]
        print(f"done: {job.name}: validation loss {loss:.4f}", flush=True)
        return loss

    if on_gpu := torch.cuda.is_available():
        torch.cuda.synchronize()  # no stream waits for another
    ordinary = loop._trainer
    loop._trainer = lambda config, *_, **__: trainers[repr(config)]
    try:
        with ThreadPoolExecutor(len(jobs)) as pool:
            return list(pool.map(train_one, jobs))
    finally:
        loop._trainer = ordinary


def jobs_of(out: Path, record: Path, size: str, which: Sequence[str]) -> list[Job]:
    """The runs of that size on these seeds, and where `which` has "check", those of its check; none that is done."""
    known = read_record(record, ScalingRecord)
    assert known.sweep
    given = dataclasses.replace(DEFAULTS, batch_size=known.sweep.config["batch_size"])
    smallest = tuple(dict.fromkeys(run.size for run in known.grid))
    options = Options(known.arms, (*smallest, size), heads=known.sweep.heads, grid=known.sweep.grid, config=given)
    of = plan(options, out)
    rates, wanted = chosen_rates(of, known.grid), of.sizes[2]
    runs = [run for run in seed_runs(of, wanted, rates) if str(run.seed) in which]
    runs += check_runs(of, wanted, rates) if "check" in which else []
    return [run.job for run in runs if RunFolder(run.job.folder).summary() is None]


if __name__ == "__main__":
    if len(sys.argv) < 5:
        sys.exit(__doc__)
    torch.set_num_threads(1)
    try:
        if jobs := jobs_of(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], sys.argv[4:]):
            train_at_once(jobs)
    except (UsageError, RunStopped) as error:
        sys.exit(f"attnres: {error}")
