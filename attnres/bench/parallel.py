"""A pipeline of four one-thread processes: bytes sent with and without the cross-stage cache, and time of a step."""

from __future__ import annotations

import multiprocessing
import tempfile
from collections import Counter
from dataclasses import dataclass
from datetime import timedelta
from fractions import Fraction
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attnres.analysis.cost import Plan, cached_total, counted_transfers, formula_transfers, naive_total
from attnres.bench.measure import Row, Setting, milliseconds, take_turns
from attnres.model import TransformerConfig

PIPELINE, VIRTUAL, BLOCK_SIZE = 4, 2, 4
TIMEOUT = timedelta(minutes=5)
CONTENDERS: dict[str, tuple[str, bool]] = {
    "residual": ("residual", True),
    "block": (f"block:block_size={BLOCK_SIZE}", True),
    "block, naive": (f"block:block_size={BLOCK_SIZE}", False),
}
"""Connection, and whether the cross-stage cache is on."""


@dataclass(frozen=True)
class Sizes:
    """The sizes of the model and one step; with 16 layers each of the eight chunks is one block."""

    dim: int
    batch: int
    time: int
    layers: int = 16
    micro_batches: int = 8

    @property
    def entry_bytes(self) -> int:
        """The bytes of one float32 tensor of `values`."""
        return 4 * self.batch * self.time * self.dim

    def __str__(self) -> str:
        return f"d {self.dim}, {self.layers} layers, {self.micro_batches} x {self.batch}x{self.time} tokens"


FULL, QUICK = Sizes(256, 2, 128), Sizes(64, 1, 8)


def measure(setting: Setting) -> list[Row]:
    sizes = QUICK if setting.quick else FULL
    medians, traffic = _run_ranks(sizes, setting)
    where = f"{PIPELINE} processes of 1 thread, gloo"
    what = f"{PIPELINE} x {VIRTUAL} pipeline, {{}}"
    return [
        *_byte_rows(sizes, traffic, what, where),
        Row(
            what.format(f"step, Block cached over Block naive, {sizes}"),
            where,
            "-",
            "-",
            medians["block"] / medians["block, naive"],
            milliseconds(medians),
        ),
        Row(what.format("step, Block over residual"), where, "-", "1.04", medians["block"] / medians["residual"]),
        _paper_row(),
    ]


def _byte_rows(sizes: Sizes, traffic: dict[str, Counter], what: str, where: str) -> list[Row]:
    """Bytes handed to the network against what the cost model counts, and both against the paper's formula."""
    chunks = PIPELINE * VIRTUAL
    counted = counted_transfers([range(4 * chunk, 4 * chunk + 4) for chunk in range(chunks)], BLOCK_SIZE, PIPELINE)
    formula = formula_transfers(PIPELINE, VIRTUAL, Fraction(1))
    sent = {
        name: [traffic[key][chunk, "forward"] / sizes.entry_bytes for chunk in range(1, chunks)]
        for name, key in (("cached", "block"), ("naive", "block, naive"))
    }
    returned = {key: sum(n for (_, way), n in traffic[key].items() if way == "backward") for key in CONTENDERS}
    details: dict[str, float | str] = {}
    for name, counted_entries in (("naive", counted.naive), ("cached", counted.cached)):
        agree = sent[name] == [float(entries) for entries in counted_entries]
        details |= {
            f"{name}, entries sent forward per micro-batch": sum(sent[name]),
            f"{name}, every transition as counted by attnres cost": "yes" if agree else f"NO: {sent[name]}",
        }
    details |= {
        "naive, C(C-1)/2 N_p": float(naive_total(PIPELINE, VIRTUAL, Fraction(1))),
        "cached, P(P-1)/2 N_p + (V-1) P^2 N_p": float(cached_total(PIPELINE, VIRTUAL, Fraction(1))),
        "cached, backward over forward bytes": returned["block"]
        / sum(traffic["block"][c, "forward"] for c in range(1, chunks)),
    }
    total = float(sum(counted.cached) / sum(counted.naive))
    peak = float(max(counted.cached) / max(counted.naive))
    paper_peak = float(max(formula.cached) / max(formula.naive))
    return [
        Row(
            what.format("bytes cached over naive"),
            where,
            f"{total:.2f}",
            f"{total:.2f}",
            sum(sent["cached"]) / sum(sent["naive"]),
            details,
        ),
        Row(
            what.format("largest transition, cached over naive"),
            where,
            f"{peak:.2f}",
            f"{1 / VIRTUAL:.2f}",
            max(sent["cached"]) / max(sent["naive"]),
            {"blocks alone, by the formula": paper_peak},
        ),
    ]


def _paper_row() -> Row:
    """How the time of a step falls with P in the simulator, for the paper's layout."""
    plan = Plan(micro_batches=32)
    one = 3 * plan.sublayer_seconds * plan.layers * plan.micro_batches
    details: dict[str, float | str] = {}
    for p in plan.with_pipelines():
        for name, step in p.timelines().items():
            details[f"P = {p.pipeline}, {name}, over ideal"] = step.seconds * p.pipeline / one
    what = "step over its ideal 1/P, P = 8, V = 4, Block cached (attnres cost --micro-batches 32)"
    return Row(what, "on paper: simulated", "-", "-", float(details["P = 8, block, cached, over ideal"]), details)


def _run_ranks(sizes: Sizes, setting: Setting) -> tuple[dict[str, float], dict[str, Counter]]:
    """Median seconds of each contender's step, and the bytes of one micro-batch by transition and direction."""
    from torch.multiprocessing.spawn import spawn

    queue: Any = multiprocessing.get_context("spawn").SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        arguments = (folder, sizes, setting.rounds, queue)
        ranks: Any = spawn(_rank, arguments, nprocs=PIPELINE, join=False)  # ends all of them when one fails
        traffic: dict[str, Counter] = {name: Counter() for name in CONTENDERS}
        medians: dict[str, float] = {}
        ended = False
        while not ended:
            ended = ranks.join(timeout=0.1)
            while not queue.empty():
                kind, content = queue.get()
                if kind == "progress":
                    setting.progress(content)
                else:
                    rank, of_rank, counts = content
                    medians = of_rank if rank == 0 else medians
                    for name, count in counts.items():
                        traffic[name].update(count)
    return medians, traffic


def _rank(rank: int, folder: str, sizes: Sizes, rounds: int, queue: Any) -> None:
    import torch.distributed as dist

    from attnres.parallel.pipeline import Pipeline

    torch.set_num_threads(1)
    store = f"file://{Path(folder) / 'ranks'}"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=PIPELINE, timeout=TIMEOUT)
    torch.manual_seed(0)
    batches = list(torch.randint(0, 256, (sizes.micro_batches, sizes.batch, sizes.time + 1)))
    pipelines = {}
    for name, (connection, cache) in CONTENDERS.items():
        config = TransformerConfig(
            dim=sizes.dim,
            layers=sizes.layers,
            heads=sizes.dim // 64,
            context=sizes.time,
            connection=connection,
        )
        pipelines[name] = Pipeline(
            config, 0, micro_batches=sizes.micro_batches, virtual=VIRTUAL, schedule="interleaved-1f1b", cache=cache
        )
    counts = {}
    for name, pipeline in pipelines.items():
        pipeline.forward_backward(batches)
        counts[name] = Counter({key: count // sizes.micro_batches for key, count in pipeline.traffic.items()})

    def step(pipeline: Pipeline, batches: list[Tensor]) -> None:
        for parameter in pipeline.parameters():
            parameter.grad = None
        pipeline.forward_backward(batches)  # ends on all ranks together: every one has the loss

    def progress(text: str) -> None:
        if rank == 0:
            queue.put(("progress", text))

    runs = {name: (lambda pipeline=pipeline: step(pipeline, batches)) for name, pipeline in pipelines.items()}
    medians = take_turns(runs, rounds, progress, "pipeline step")
    queue.put(("done", (rank, medians, counts)))
    dist.destroy_process_group()
