"""Sizes of the ladder on a CPU, each model compiled whole, at the rates that the record's grid gives them.

    python recipes/ladder/compiled.py runs/ladder-32-20 results/ladder-32-20.json 32x24 32x32

At 32 layers torch.compile takes up to two minutes for a run and a fifth to a third off each of its steps. Evaluations
run as they are, and what a run ends with is the trainer's but for rounding. Seed by seed, on one thread: with PART=1/2
and PART=2/2 two processes share the runs. What is in the record is left out, what was stopped goes on; `attnres
scaling` with the same --out takes finished runs into the record.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from on_gpu import runs_of, train_one

from attnres.errors import UsageError
from attnres.lab.record import read_record
from attnres.lab.scaling.record import ScalingRecord
from attnres.train import loop
from attnres.train.loop import Interrupted, RunStopped
from attnres.train.trainer import Trainer


class CompiledTrainer(Trainer):
    """A trainer whose steps are compiled. With `config.compile` its runs would be another configuration's."""

    def _build(self):
        model, optimizers = super()._build()
        model.compile(dynamic=False)
        return model, optimizers

    def evaluate(self, before_each: Callable[[], None] = lambda: None) -> float:
        with torch.compiler.set_stance("force_eager"):  # the forward pass alone would be compiled once more
            return super().evaluate(before_each)


def share(part: str) -> tuple[int, int]:
    """PART as the place of the first run and the distance to the next."""
    number, _, parts = part.partition("/")
    if not (number.isdecimal() and parts.isdecimal() and 1 <= int(number) <= int(parts)):
        raise UsageError(f"PART={part}: give one of so many parts, such as 1/2")
    return int(number) - 1, int(parts)


def main(out: Path, record: Path, sizes: Sequence[str], part: str) -> None:
    first, parts = share(part)
    done = {(run.arm, run.size, run.seed, run.steps) for run in read_record(record, ScalingRecord).runs}
    runs = sorted(runs_of(out, record, sizes), key=lambda run: run.seed)
    loop._trainer = lambda config, corpus, world, resumes: CompiledTrainer(config, corpus, resumes)
    torch.set_num_threads(1)
    for run in runs[first::parts]:
        if (run.arm, run.size.name, run.seed, run.job.config.steps) not in done:
            torch.compiler.reset()
            train_one(run)


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    try:
        main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:], os.environ.get("PART", "1/1"))
    except (UsageError, RunStopped, Interrupted) as error:
        sys.exit(f"attnres: {error}")
