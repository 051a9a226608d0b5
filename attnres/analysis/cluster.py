"""One training step on clusters of many pipelines, on paper: its time, and what each GPU sends and keeps.

A cluster of G GPUs has G / P pipelines of the plan, which share the micro-batches of a step; each cuts its weights over
its peers in the others (FSDP2), keeps them gathered for the step, and recomputes two sublayers at a time.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from attnres.analysis.cost import Plan, finished_blocks
from attnres.errors import UsageError

GATHERED, CUT = 2 + 4, 4 + 4 + 8
"""Bytes of a parameter: gathered in bfloat16 with the float32 sum of its gradient; cut over the pipelines in float32
with its gradient and AdamW's two moments."""


@dataclass(frozen=True)
class ClusterStep:
    """A step of one connection on one cluster. Bytes are those of a GPU."""

    gpus: int
    micro_batches: int
    """How many each pipeline has."""
    connection: str
    seconds: float
    busy: float
    """The share of the step in which a GPU computes."""
    over_residual: float
    stage_bytes: float
    """What it sends to other stages, forward and backward; the mean over its pipeline."""
    shard_bytes: float
    """What it sends to gather weights and to sum gradients, once in a step."""
    weight_bytes: float
    """Weights, gradients and optimizer state."""
    depth_bytes: float
    """The most that it keeps of depth's state for the backward pass, on the GPU of its pipeline that keeps most."""


def cluster_steps(plan: Plan, gpus: Sequence[int], batch: int) -> list[ClusterStep]:
    """Simulate the plan's pipelines on each number of GPUs, with `batch` micro-batches in a step of all of them.

    Raises:
        UsageError: a number that does not divide, or one given twice.
    """
    if len(set(gpus)) < len(gpus):
        raise UsageError(f"gpus: give each number of GPUs once, not {' '.join(map(str, gpus))}")
    return [step for count in gpus for step in _steps(plan, count, batch)]


def _steps(plan: Plan, gpus: int, batch: int) -> list[ClusterStep]:
    if gpus < 1 or gpus % plan.pipeline:
        raise UsageError(f"gpus must be a multiple of the {plan.pipeline} ranks of --pipeline, not {gpus}")
    pipelines = gpus // plan.pipeline
    if batch < 1 or batch % pipelines:
        raise UsageError(f"batch must be a multiple of the {pipelines} pipelines on {gpus} gpus, not {batch}")
    plan = dataclasses.replace(plan, micro_batches=batch // pipelines)
    timelines, counted = plan.timelines(), plan.counted()
    entries = {
        "residual": Fraction(len(plan.sites) - 1),
        "block, cached": sum(counted.cached),
        "block, naive": sum(counted.naive),
    }
    parameters = plan.layers * plan.parameters_of_sublayer / plan.pipeline
    return [
        ClusterStep(
            gpus=gpus,
            micro_batches=plan.micro_batches,
            connection=name,
            seconds=step.seconds,
            busy=step.busy,
            over_residual=step.seconds / timelines["residual"].seconds,
            stage_bytes=2 * float(entries[name]) * plan.entry_bytes * plan.micro_batches / plan.pipeline,
            shard_bytes=GATHERED * parameters * (pipelines - 1) / pipelines,
            weight_bytes=(GATHERED + CUT / pipelines) * parameters,
            depth_bytes=plan.entry_bytes * most_kept(plan, name),
        )
        for name, step in timelines.items()
    ]


def most_kept(plan: Plan, connection: str) -> int:
    """The most entries that a rank keeps at once for the backward passes to come.

    Of every two sublayers the input is kept: the stream, or Block's open partial and its finished blocks. Those are the
    same tensors for all sublayers of a chunk, and with the cache for all chunks of a rank, where their gradients wait
    too until the chunk that received them sends them back.
    """
    streams, partials, blocks = [], [], []
    for sites in plan.sites:
        inputs = sites[::2]
        streams.append(len(inputs))
        partials.append(sum(site % plan.block_size > 0 for site in inputs))
        blocks.append(finished_blocks(inputs[-1], plan.block_size))

    def cached(running: set[int], returned: int | None) -> int:
        # What the rank had before this chunk is not sent back yet.
        earlier = -1 if returned is None else returned - plan.pipeline
        gradients = finished_blocks(plan.sites[earlier].stop, plan.block_size) if earlier >= 0 else 0
        return sum(partials[c] for c in running) + max((blocks[c] for c in running), default=0) + gradients

    kept: dict[str, Callable[[set[int], int | None], int]] = {
        "residual": lambda running, returned: sum(streams[c] for c in running),
        "block, cached": cached,
        "block, naive": lambda running, returned: sum(partials[c] + blocks[c] for c in running),
    }
    return max(_peak(actions, kept[connection]) for actions in plan.actions())


def _peak(actions: Sequence[tuple[str, int, int]], kept: Callable[[set[int], int | None], int]) -> int:
    """The largest sum over micro-batches of kept(chunks without a backward pass, the last that had one)."""
    running: dict[int, set[int]] = defaultdict(set)
    returned: dict[int, int] = {}
    sizes: dict[int, int] = defaultdict(int)
    now = peak = 0
    for kind, chunk, micro_batch in actions:
        if kind == "forward":
            running[micro_batch].add(chunk)
        else:
            returned[micro_batch] = chunk
            if kind != "input gradient":
                running[micro_batch].remove(chunk)
        size = kept(running[micro_batch], returned.get(micro_batch))
        now += size - sizes[micro_batch]
        sizes[micro_batch] = size
        peak = max(peak, now)
    return peak
