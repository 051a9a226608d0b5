"""Which runs a scaling law has: every connection at every size, on tokens in proportion to the parameters."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from attnres.errors import UsageError
from attnres.lab.arms import arm_folder, arm_model
from attnres.lab.options import Arms, Config, check_seeds, checked_arms
from attnres.train import RunConfig
from attnres.train.sweep import Job, default_workers

ARMS = ("residual", "block", "full")
SIZES = ("16x32", "16x48", "20x64", "24x80", "28x96")
HEAD_DIM = 16
DEFAULTS = RunConfig(batch_size=4, validation_tokens=32_768)


@dataclass(frozen=True)
class Options:
    """What `attnres scaling` asks for."""

    arms: Arms = ARMS
    """Connections as NAME or NAME:OPTION=VALUE,OPTION=VALUE, before all options. The first is the baseline."""
    sizes: tuple[str, ...] = SIZES
    """Models as LAYERSxDIM, at least three. Steps, heads, layers and dim below are replaced by theirs."""
    tokens_per_parameter: float = 0.4
    """Tokens of a run over the parameters of its sublayers."""
    seeds: int = 3
    """Paired seeds: seed, seed + 1, .."""
    workers: int = default_workers()
    """Runs at a time, each with one thread."""
    config: Config = DEFAULTS


@dataclass(frozen=True)
class Plan:
    options: Options
    runs: Sequence[Planned]
    out: Path


def plan(options: Options, out: Path) -> Plan:
    """Raises UsageError on bad options, arms and sizes among them."""
    options = dataclasses.replace(options, arms=checked_arms(options.arms, options.config))
    check_seeds(options.seeds, options.workers)
    if len(set(options.sizes)) < max(3, len(options.sizes)):
        raise UsageError("sizes: give at least three, each once; a line through two points has no error")
    if not 0 < options.tokens_per_parameter < math.inf:
        raise UsageError(f"tokens-per-parameter must be positive, not {options.tokens_per_parameter}")
    seeds = range(options.config.seed, options.config.seed + options.seeds)
    sizes = [parse_size(size) for size in options.sizes]
    planned = runs(options.arms, sizes, seeds, options.config, options.tokens_per_parameter, out)
    return Plan(options, planned, out)


@dataclass(frozen=True)
class Size:
    """A model's depth and width, written LAYERSxDIM."""

    layers: int
    dim: int

    @property
    def name(self) -> str:
        return f"{self.layers}x{self.dim}"

    @property
    def parameters(self) -> int:
        """The sublayers' parameters, 12 dim^2 per transformer layer: what the number of tokens is in proportion to."""
        return 12 * self.layers * self.dim**2


def parse_size(text: str) -> Size:
    layers, _, dim = text.partition("x")
    if not (layers.isdecimal() and dim.isdecimal() and int(layers) and int(dim) and int(dim) % HEAD_DIM == 0):
        raise UsageError(f"size {text!r}: write LAYERSxDIM such as 16x64, dim a multiple of {HEAD_DIM}")
    return Size(int(layers), int(dim))


def sized(config: RunConfig, size: Size, arm: str, tokens_per_parameter: float, seed: int) -> RunConfig:
    """The run of one size: its own steps, so that tokens are in proportion to parameters, heads of 16 channels."""
    model = dataclasses.replace(config.model, layers=size.layers, dim=size.dim, heads=size.dim // HEAD_DIM)
    steps = max(1, math.ceil(tokens_per_parameter * size.parameters / config.tokens_per_step))
    return dataclasses.replace(
        config,
        model=arm_model(arm, model),
        steps=steps,
        seed=seed,
        evaluate_every=max(1, steps // 10),
        save_every=steps,
        keep=1,
    )


@dataclass(frozen=True)
class Planned:
    """One run, and so one point of a curve."""

    arm: str
    size: Size
    seed: int
    job: Job


def runs(
    arms: Sequence[str], sizes: Sequence[Size], seeds: Iterable[int], config: RunConfig, ratio: float, out: Path
) -> list[Planned]:
    """Smallest models first, so that a sweep that is stopped early has whole sizes."""
    planned = []
    for size in sorted(sizes, key=lambda size: size.parameters):
        for seed in seeds:
            for arm in arms:
                chosen = sized(config, size, arm, ratio, seed)
                folder = arm_folder(out, arm) / size.name / f"seed-{seed}"
                planned.append(Planned(arm, size, seed, Job(f"{arm}, {size.name}, seed {seed}", chosen, folder)))
    return planned
