"""Which runs a scaling law has: every connection at every size, on tokens in proportion to the parameters."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from attnres.errors import UsageError, check_count
from attnres.lab.arms import arm_folder, arm_model
from attnres.lab.options import check_positive, check_seeds, checked_arms
from attnres.lab.scaling.options import DEFAULTS, Options
from attnres.model import TransformerConfig
from attnres.model.counts import count_parameters
from attnres.train import RunConfig
from attnres.train.sweep import Job

HEAD_DIM = 16
MOST_TOKENS = 1_000_000
"""Tokens per parameter."""


@dataclass(frozen=True)
class Plan:
    options: Options
    sizes: Sequence[Size]
    """The smallest first."""
    out: Path

    @property
    def seeds(self) -> range:
        return range(self.options.config.seed, self.options.config.seed + self.options.seeds)

    @property
    def checked(self) -> Sequence[Size]:
        """The first sizes beyond those that the rates come from."""
        return self.sizes[2 : 2 + self.options.checks] if len(self.options.grid) > 1 else ()


def plan(options: Options, out: Path) -> Plan:
    """Raises UsageError on bad options, arms and sizes among them."""
    options = dataclasses.replace(options, arms=checked_arms(options.arms, options.config))
    check_seeds(options.seeds, options.workers)
    if len(set(options.sizes)) < max(3, len(options.sizes)):
        raise UsageError("sizes: give at least three, each once; a line through two points has no error")
    if not 0 < options.tokens_per_parameter <= MOST_TOKENS:
        raise UsageError(
            f"tokens_per_parameter must be positive and at most {MOST_TOKENS}, not {options.tokens_per_parameter}"
        )
    check_positive("grid", options.grid)
    check_count("checks", options.checks, least=0)
    if options.heads is not None:
        check_count("heads", options.heads)
    given = (parse_size(size, options.heads, options.config.model) for size in options.sizes)
    sizes = sorted(given, key=lambda size: size.parameters)
    if len({size.name for size in sizes}) < len(sizes):
        raise UsageError("sizes: give each LAYERSxDIM once")
    if len(options.grid) > 1 and sizes[0].parameters == sizes[1].parameters:
        raise UsageError(
            f"sizes: with a grid the two smallest, {sizes[0].name} and {sizes[1].name}, must differ in parameters: "
            "rates go on along the line through both"
        )
    chosen = Plan(options, sizes, out)
    for arm in options.arms:
        for size in sizes:
            planned(chosen, arm, size, options.config.seed)
    for factor in options.grid:  # a rate may be too small or too large
        planned(chosen, options.arms[0], sizes[0], options.config.seed, factor)
    return chosen


@dataclass(frozen=True)
class Size:
    """A model's depth and width, written LAYERSxDIM or LAYERSxDIM@N."""

    layers: int
    dim: int
    heads: int
    parameters: int
    """The sublayers': what the number of tokens is in proportion to."""
    tokens_per_parameter: float | None = None

    @property
    def name(self) -> str:
        return f"{self.layers}x{self.dim}"


def parse_size(text: str, heads: int | None = None, model: TransformerConfig = DEFAULTS.model) -> Size:
    """Raises UsageError if it is no size, or its dim does not divide into the heads. model: all but its size."""
    match = re.fullmatch(r"([1-9]\d{0,8})x([1-9]\d{0,8})(?:@(\d{1,6}(?:\.\d+)?))?", text)
    multiple = 2 * heads if heads else HEAD_DIM  # rotary positions turn pairs of channels
    if not match or int(match[2]) % multiple or (match[3] and not float(match[3])):
        raise UsageError(
            f"size {text!r}: write LAYERSxDIM such as 16x64, dim a multiple of {multiple}, or 16x64@10 for 10 tokens "
            "per parameter"
        )
    layers, dim = int(match[1]), int(match[2])
    heads = heads or dim // HEAD_DIM
    parameters = _parameters(dataclasses.replace(model, layers=layers, dim=dim, heads=heads))
    return Size(layers, dim, heads, parameters, float(match[3]) if match[3] else None)


def _parameters(model: TransformerConfig) -> int:
    """How many parameters of the sublayers a token meets.

    The lab's own have 12 dim^2 per layer, up to the width of the MLP, which is a multiple of 16: that is not counted,
    so that sizes stand in the same proportion at every width.
    """
    if (model.backbone, model.hidden, model.kv_heads) == ("lab", None, None):
        return 12 * model.layers * model.dim**2
    counts = count_parameters(model)
    return counts.active_without_embedding - counts.connection


def sized(
    config: RunConfig, size: Size, arm: str, tokens_per_parameter: float, seed: int, factor: float = 1.0
) -> RunConfig:
    """The run of one size: its own steps, so that tokens are in proportion to parameters, and both learning rates
    times `factor`."""
    model = dataclasses.replace(config.model, layers=size.layers, dim=size.dim, heads=size.heads)
    rates = config.optimizer.lr * factor, config.optimizer.adamw_lr * factor
    optimizer = dataclasses.replace(config.optimizer, lr=rates[0], adamw_lr=rates[1])
    ratio = size.tokens_per_parameter or tokens_per_parameter
    steps = max(1, math.ceil(ratio * size.parameters / config.tokens_per_step))
    tenth = max(1, steps // 10)
    return dataclasses.replace(
        config,
        model=arm_model(arm, model),
        optimizer=optimizer,
        steps=steps,
        seed=seed,
        evaluate_every=tenth,
        save_every=tenth,
        keep=1,
    )


HEAD_DIM = 16
MOST_TOKENS = 1_000_000
"""Tokens per parameter."""


@dataclass(frozen=True)
class Planned:
    """One run, and so one point of a curve."""

    arm: str
    size: Size
    seed: int
    factor: float
    """What both learning rates are multiplied by."""
    job: Job


def planned(plan: Plan, arm: str, size: Size, seed: int, factor: float = 1.0) -> Planned:
    """One run of the sweep. Raises UsageError if there is no such arm at that size."""
    options = plan.options
    chosen = sized(options.config, size, arm, options.tokens_per_parameter, seed, factor)
    folder = arm_folder(plan.out, arm) / size.name / (f"lr-{factor:g}" if factor != 1 else "") / f"seed-{seed}"
    name = f"{arm}, {size.name}" + (f", lr x{factor:g}" if factor != 1 else "") + f", seed {seed}"
    return Planned(arm, size, seed, factor, Job(name, chosen, folder))
