"""Runs that are done go on to more steps: what `recipes/ladder.sh 16-20` does with the largest size.

    python recipes/ladder/longer.py 7680 runs/ladder-16-20/*/16x64/lr-0.5/seed-*

Each goes on from its last checkpoint before the learning rate fell, evaluated and saved after every tenth of its steps,
one after the other on one thread. Stop it in any way; the same command goes on.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence

import torch

from attnres.errors import UsageError
from attnres.train import RunConfig, train
from attnres.train.folder import RunFolder
from attnres.train.loop import Interrupted, RunStopped


def longer(config: RunConfig, steps: int) -> RunConfig:
    """The same run with more steps, as `attnres scaling` plans one of that length."""
    return dataclasses.replace(config, steps=steps, evaluate_every=steps // 10, save_every=steps // 10)


def main(steps: int, folders: Sequence[str]) -> None:
    torch.set_num_threads(1)
    for number, folder in enumerate(folders, 1):
        config = longer(RunFolder(folder).config(), steps)
        print(f"{number} of {len(folders)}: {folder}", flush=True)
        summary = train(config, folder, listen=_say_note)
        print(f"done: validation loss {summary['validation_loss']:.4f}", flush=True)


def _say_note(record: dict) -> None:
    if record.get("note"):
        print(record["note"], flush=True)


if __name__ == "__main__":
    if len(sys.argv) < 3 or not sys.argv[1].isdecimal():
        sys.exit("usage: python recipes/ladder/longer.py STEPS RUN ..")
    try:
        main(int(sys.argv[1]), sys.argv[2:])
    except (UsageError, RunStopped, Interrupted) as error:
        sys.exit(f"attnres: {error}")
