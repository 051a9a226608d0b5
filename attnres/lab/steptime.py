"""What a training step takes. Steps of all connections alternate, so that other work on the machine meets all alike."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Mapping

import torch

from attnres.data import Corpus
from attnres.train import RunConfig
from attnres.train.folder import fit_vocabulary
from attnres.train.trainer import Trainer

ROUNDS = 9
"""In which the steps of all are timed."""

WARM_UP = 2
"""Rounds before those that count."""


def median_steps(configs: Mapping[str, RunConfig], corpus: Corpus) -> dict[str, float]:
    """The median seconds of a training step of each, on one thread."""
    trainers = {}
    for name, config in configs.items():
        fitted = fit_vocabulary(config, corpus.vocab_size)
        # Behind a run's last step the schedule would go below zero.
        trainers[name] = Trainer(dataclasses.replace(fitted, steps=max(WARM_UP + ROUNDS, config.steps)), corpus)
    seconds: dict[str, list[float]] = {name: [] for name in configs}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for number in range(-WARM_UP, ROUNDS):
            for name, trainer in trainers.items():
                began = time.perf_counter()
                trainer.train_step()
                if number >= 0:
                    seconds[name].append(time.perf_counter() - began)
    finally:
        torch.set_num_threads(threads)
    return {name: statistics.median(values) for name, values in seconds.items()}
