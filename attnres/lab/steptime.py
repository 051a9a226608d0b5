"""What a training step takes, measured by turns, so that other work on the machine meets all alike."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Mapping, Sequence

import torch

from attnres.data import Corpus
from attnres.lab.engine import Progress
from attnres.lab.options import arm_model
from attnres.model.flops import training_flops
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


def operations_of_steps(arms: Sequence[str], config: RunConfig, corpus: Corpus) -> dict[str, float]:
    """What a step of each arm takes, over the first one's: operations counted, the connection's own among them."""
    model = fit_vocabulary(config, corpus.vocab_size).model
    operations = {arm: training_flops(arm_model(arm, model)) for arm in arms}
    return {arm: operations[arm] / operations[arms[0]] for arm in arms}


def seconds_of_steps(
    arms: Sequence[str], config: RunConfig, corpus: Corpus, known: Mapping[str, float], progress: Progress
) -> dict[str, float]:
    """The same in seconds, measured on one thread. What is known is not measured again."""
    missing = [arm for arm in arms if arm not in known]
    if not missing:
        return {arm: known[arm] for arm in arms}
    configs = {arm: dataclasses.replace(config, model=arm_model(arm, config.model)) for arm in (arms[0], *missing)}
    seconds = median_steps(configs, corpus, ROUNDS, told(progress, WARM_UP + ROUNDS))
    costs = {**known, **{arm: taken / seconds[arms[0]] for arm, taken in seconds.items()}}
    return {arm: costs[arm] for arm in arms}


def told(progress: Progress, rounds: int) -> Callable[[], None]:
    """What is called after every round, and tells how many are done."""
    done = 0

    def after_each() -> None:
        nonlocal done
        done += 1
        progress(done, rounds, "timing a step of every connection, by turns")

    return after_each
