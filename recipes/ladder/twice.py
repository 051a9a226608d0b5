"""The ladder's models of 10 tokens per parameter, trained to 20: what `recipes/ladder.sh 16-20` does.

    python recipes/ladder/twice.py runs/ladder-16-20 results/ladder-16-20.json 16x48 16x64

Each trains as `recipes/ladder.sh 16` lets it until its learning rate would fall, and then goes on to twice the steps;
one that has fallen there goes on from its last checkpoint before that. Seed by seed, on one thread; what is in the
record is left out. Stop it in any way; the same command goes on.
"""

from __future__ import annotations

import dataclasses
import sys
from contextlib import suppress
from pathlib import Path

import torch

from attnres.errors import UsageError
from attnres.lab.record import read_record
from attnres.lab.scaling.plan import DEFAULTS, Options, plan, planned
from attnres.lab.scaling.record import ScalingRecord
from attnres.train import RunConfig, train
from attnres.train.folder import RunFolder
from attnres.train.loop import Interrupted, RunStopped
from attnres.train.optimizers import last_stable_step

ARMS = ("residual", "rms-residual", "block", "full", "rms-block", "delta:block_size=4", "interlayer")
RATE = 0.5
"""What the ladder's rule gives every arm at both sizes, times the default."""


class _Stable(Exception):
    """The last checkpoint before the learning rate falls is written."""


def twice(config: RunConfig, folder: Path) -> float:
    """Train to twice the steps; return the validation loss at the end."""
    tenth = config.steps // 5
    longer = dataclasses.replace(config, steps=2 * config.steps, evaluate_every=tenth, save_every=tenth)
    until = last_stable_step(config.optimizer, config.steps) // config.save_every * config.save_every

    def stop(event: dict) -> None:
        if event["kind"] == "saved" and event["step"] >= until:
            raise _Stable

    run = RunFolder(folder)
    begun = run.config() if run.record() else config
    if begun.steps == config.steps and all(checkpoint.step < until for checkpoint in run.checkpoints.all()):
        with suppress(_Stable):
            train(config, folder, listen=stop)
    return train(longer, folder)["validation_loss"]


def main(out: Path, record: Path, sizes: list[str]) -> None:
    torch.set_num_threads(1)
    given = dataclasses.replace(DEFAULTS, batch_size=8)
    of = plan(Options(ARMS, ("16x16", "16x24", *(f"{size}@10" for size in sizes)), heads=1, config=given), out)
    known = read_record(record, ScalingRecord).runs if record.exists() else ()
    done = {(run.arm, run.size, run.seed) for run in known}
    for size in of.sizes[2:]:
        for seed in of.seeds:
            for arm in ARMS:
                if (arm, size.name, seed) not in done:
                    job = planned(of, arm, size, seed, RATE).job
                    print(f"{job.name}: {job.folder}", flush=True)
                    print(f"done: validation loss {twice(job.config, job.folder):.4f}", flush=True)


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    try:
        main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
    except (UsageError, RunStopped, Interrupted) as error:
        sys.exit(f"attnres: {error}")
