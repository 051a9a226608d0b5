"""What a training step takes, measured by turns, so that other work on the machine meets all alike."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Mapping

import torch

from attnres.data import Corpus
from attnres.train import RunConfig
from attnres.train.folder import fit_vocabulary
from attnres.train.trainer import Trainer

ROUNDS = 31
"""In which the steps of all are timed."""

WARM_UP = 2
"""Rounds before those that count."""


def median_steps(
    configs: Mapping[str, RunConfig], corpus: Corpus, rounds: int, after_each: Callable[[], None]
) -> dict[str, float]:
    """The median seconds of a training step of each, on one thread. after_each: called after every round."""
    trainers = {}
    for name, config in configs.items():
        fitted = fit_vocabulary(config, corpus.vocab_size)
        trainers[name] = Trainer(dataclasses.replace(fitted, steps=max(WARM_UP + rounds, config.steps)), corpus)
    seconds: dict[str, list[float]] = {name: [] for name in configs}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for number in range(-WARM_UP, rounds):
            for name, trainer in trainers.items():
                began = time.perf_counter()
                trainer.train_step()
                if number >= 0:
                    seconds[name].append(time.perf_counter() - began)
            after_each()
    finally:
        torch.set_num_threads(threads)
    return {name: statistics.median(values) for name, values in seconds.items()}
