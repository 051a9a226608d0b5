"""Loss against compute for several sizes of model, and how much compute a connection saves."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnres.analysis.flops import training_flops
from attnres.analysis.powerlaw import Point
from attnres.errors import UsageError
from attnres.lab.arms import arm_folder, arm_model
from attnres.lab.record import Record
from attnres.train import RunConfig
from attnres.train.sweep import Job

ARMS = ("residual", "block", "full")
SIZES = ("16x32", "16x48", "20x64", "24x80", "28x96")
HEAD_DIM = 16


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
        """Of the sublayers, 12 dim^2 per transformer layer: what the number of tokens is in proportion to."""
        return 12 * self.layers * self.dim**2


def parse_size(text: str) -> Size:
    layers, _, dim = text.partition("x")
    if not (layers.isdecimal() and dim.isdecimal() and int(layers) and int(dim) and int(dim) % HEAD_DIM == 0):
        raise UsageError(f"size {text!r}: write LAYERSxDIM such as 16x64, dim a multiple of {HEAD_DIM}")
    return Size(int(layers), int(dim))


def sized(config: RunConfig, size: Size, arm: str, tokens_per_parameter: float, seed: int) -> RunConfig:
    """The run of one size: its own steps, so that tokens are in proportion to parameters, heads of 16 channels."""
    model = dataclasses.replace(config.model, layers=size.layers, dim=size.dim, heads=size.dim // HEAD_DIM)
    tokens_per_step = config.batch_size * config.accumulate * model.context
    steps = max(1, math.ceil(tokens_per_parameter * size.parameters / tokens_per_step))
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
class Run:
    """One point of a curve."""

    arm: str
    size: Size
    seed: int
    job: Job


def runs(
    arms: Sequence[str], sizes: Sequence[Size], seeds: Iterable[int], config: RunConfig, ratio: float, out: Path
) -> list[Run]:
    """Smallest models first, so that a sweep that is stopped early has whole sizes."""
    planned = []
    for size in sorted(sizes, key=lambda size: size.parameters):
        for seed in seeds:
            for arm in arms:
                chosen = sized(config, size, arm, ratio, seed)
                folder = arm_folder(out, arm) / size.name / f"seed-{seed}"
                planned.append(Run(arm, size, seed, Job(f"{arm}, {size.name}, seed {seed}", chosen, folder)))
    return planned


def flops_per_token(run: Run) -> float:
    return training_flops(run.job.config.model)


def final_points(record: Record) -> dict[str, list[Point]]:
    """The final loss of every run that was finished, by arm, the baseline first; compute in operations."""
    curves: dict[str, list[Point]] = {record["arms"][0]: []}
    for run in record["runs"]:
        if run["status"] == "done":
            compute = run["flops_per_token"] * run["tokens"]
            curves.setdefault(run["arm"], []).append(Point(compute, run["loss"], run["size"], run["seed"]))
    return curves


def diverged(record: Record) -> dict[str, int]:
    """How many runs of each arm did not end below where they began."""
    return {
        arm: sum(run["arm"] == arm and run["status"] == "diverged" for run in record["runs"]) for arm in record["arms"]
    }


def iso_flop_curves(record: Record, levels: int = 8) -> dict[str, dict[float, list[tuple[float, float]]]]:
    """arm -> compute -> [(parameters, loss)]: mean over seeds, read off the training curves at equal compute.

    Losses before the learning rate begins to decay, and so above those of a run that was made for that compute: good
    for comparing sizes and arms with each other at one level, not for a fit. A size counts at a level if its runs reach
    it before that; a level is kept if two sizes do. Levels are spaced evenly in log compute, between what the smallest
    and the largest model have used by then under the arm that uses least.
    """
    totals = sorted(min(run["curve"][-1][0] for run in group) for group in _by_size(record).values())
    if len(totals) < 2:
        return {}
    low, high = math.log(totals[0]), math.log(totals[-1])
    computes = [math.exp(low + (high - low) * level / (levels - 1)) * 0.999 for level in range(levels)]
    arms: dict[str, dict[float, list[tuple[float, float]]]] = {}
    for arm in record["arms"]:
        for compute in computes:
            points = []
            for group in _by_size(record, arm).values():
                losses = [_at(run["curve"], compute) for run in group]
                if losses and all(loss is not None for loss in losses):
                    points.append((float(group[0]["parameters"]), sum(filter(None, losses)) / len(losses)))
            if len(points) > 1:
                arms.setdefault(arm, {})[compute] = sorted(points)
    return arms


def _by_size(record: Record, arm: str | None = None) -> dict[str, list[dict[str, Any]]]:
    groups: dict[str, list[dict[str, Any]]] = {}
    for run in record["runs"]:
        if run["status"] == "done" and arm in (None, run["arm"]):
            steady = (1 - record["config"]["optimizer"]["decay"]) * run["tokens"]
            compute = [[run["flops_per_token"] * tokens, loss] for tokens, loss in run["curve"] if tokens <= steady]
            groups.setdefault(run["size"], []).append({**run, "curve": compute})
    return groups


def _at(curve: Sequence[Sequence[float]], compute: float) -> float | None:
    """The loss at that compute, linear in log compute between evaluations; None outside of them."""
    for (before, loss), (after, next_loss) in itertools.pairwise(curve):
        if before <= compute <= after and before > 0:
            share = math.log(compute / before) / math.log(after / before)
            return loss + share * (next_loss - loss)
    return None
