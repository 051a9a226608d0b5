"""Everything that needs a CUDA device: the operator and whole stacks against every peer, bandwidth, memory, decoding.

Without such a device every row says "not measured"; there is no estimate.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch

from attnres.bench import decode, operator, readers, stack
from attnres.bench.graphs import captured
from attnres.bench.measure import RatioRow, Setting, copy_bandwidth, medians, milliseconds, take_turns
from attnres.bench.operator import ContenderTimes
from attnres.ops.backends import interpreted
from attnres.torch_private import compiler_config

DECODER = decode.DecoderSizes(2048, 24)


@dataclass(frozen=True)
class GpuSizes:
    """How much to measure."""

    dims: tuple[int, ...] = (1024, 2048, 4096)
    sublayers: tuple[int, ...] = (32, 64)
    sources: int = 9
    block_size: int = 8
    operator_elements: int = 2**26  # of one source, batch x time x d: far more than the caches hold
    stack_elements: int = 2**25  # a kernel then takes ten times as long as its launch
    batch: int = 4
    decoder: decode.DecoderSizes = DECODER


QUICK = GpuSizes((32,), (4,), 3, 2, 2**8, 2**8, 2, decode.QUICK)


@dataclass(frozen=True)
class Goal:
    """What a kind of row measures, and what it must be."""

    what: str
    must: str

    def row(self, where: str, size: str = "", ratio: float | None = None, details: dict | None = None) -> RatioRow:
        return RatioRow(self.what + size, where, self.must, ratio, details or {})


OPERATOR = Goal("operator forward+backward over the fastest other, bf16", "1x")
STACK = Goal("whole stack forward+backward over the fastest other, bf16", "1x")
FORWARD = Goal("operator forward, share of the copy bandwidth", "85%")
BACKWARD = Goal("operator backward, share of the copy bandwidth", "85%")
MEMORY = Goal("peak memory of a whole stack of SwiGLU over the plain residual's, bf16", "1.10")
DECODE = Goal("decode step with CUDA graphs, Block more than residual", "2%")

GOALS = (OPERATOR, STACK, FORWARD, BACKWARD, MEMORY, DECODE)
"""The single operator moves the same bytes for everybody; what several sites share is ours to win."""


def measure(setting: Setting) -> Iterable[RatioRow]:
    device = device_here()
    if device is None:
        return [goal.row("one H100/H200-class GPU") for goal in GOALS]
    return measure_on(device, QUICK if setting.quick or device.type == "cpu" else GpuSizes(), setting)


def device_here() -> torch.device | None:
    """The device that the Triton kernels run on: a GPU, the CPU under Triton's interpreter, or none."""
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("cpu") if interpreted() else None


def measure_on(device: torch.device, sizes: GpuSizes, setting: Setting) -> Iterator[RatioRow]:
    """Measure on a device of any kind, so that all of this can be tested without a GPU.

    What needs no others comes first: most of the time goes into compiling them, and a bench that is stopped keeps its
    rows.
    """
    where = name_of(device)
    copied = copy_bandwidth(device)
    yield decode_row(device, sizes, where, setting)
    for dim in sizes.dims:
        yield from _bandwidth_rows(_operator_shape(device, dim, sizes), where, copied, setting)
    for dim in sizes.dims:
        yield _operator_row(_operator_shape(device, dim, sizes), where, setting)
    for sublayers in sizes.sublayers:
        for dim in sizes.dims:
            yield from _stack_rows(device, dim, sublayers, sizes, where, setting)


def name_of(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)


def _operator_shape(device: torch.device, dim: int, sizes: GpuSizes) -> operator.OperatorShape:
    tokens = sizes.operator_elements // dim // sizes.batch
    return operator.OperatorShape(sizes.batch, tokens, dim, sizes.sources, torch.bfloat16, device)


def _operator_row(shape: operator.OperatorShape, where: str, setting: Setting) -> RatioRow:
    others, missing = readers.packages(shape.device)
    result = operator.compare(shape, {**readers.plain(), **others}, setting, missing, given_stacked=True)
    return _over_the_next(OPERATOR, shape, where, result)


def _bandwidth_rows(shape: operator.OperatorShape, where: str, copied: float, setting: Setting) -> Iterator[RatioRow]:
    for goal, reached in zip((FORWARD, BACKWARD), bytes_per_second(shape, setting).values(), strict=True):
        details: dict[str, float | str] = {
            "GB/s": reached / 1e9,
            "copy bandwidth, GB/s": copied / 1e9,
        }
        yield goal.row(where, f", {shape}", reached / copied, details)


def _stack_rows(
    device: torch.device, dim: int, sublayers: int, sizes: GpuSizes, where: str, setting: Setting
) -> Iterator[RatioRow]:
    tokens = sizes.stack_elements // dim // sizes.batch
    for kind in ("identity", "SwiGLU"):
        shape = stack.StackShape(kind, sublayers, dim, sizes.batch, tokens, sizes.block_size, torch.bfloat16, device)
        # One compiled reader sees every number of sources of the stack.
        with compiler_config.patch(recompile_limit=sublayers):
            result = stack.compare(shape, setting)
        yield _over_the_next(STACK, shape, where, result)
        if kind == "SwiGLU":
            ours, plain = result.peaks.get("attnres"), stack.residual_peak_bytes(shape)
            details = {"residual, peak MB": plain / 1e6} if plain else {}
            yield MEMORY.row(where, f", {shape}", ours / plain if ours and plain else None, details)


def _over_the_next(goal: Goal, shape: object, where: str, result: ContenderTimes) -> RatioRow:
    return goal.row(where, f", {shape}", result.over_the_next(), result.details)


def bytes_per_second(shape: operator.OperatorShape, setting: Setting) -> dict[str, float]:
    """The bytes that must move, once each, over the time that our operator takes: forward and backward."""
    (*sources, query, gain), grad = operator.make_inputs(shape)
    leaves = [x.requires_grad_() for x in (*sources, query, gain)]
    h = readers.ours(sources, query, gain)

    def forward() -> None:
        with torch.no_grad():
            readers.ours(sources, query, gain)

    def backward() -> None:
        torch.autograd.grad(h, leaves, grad, retain_graph=True)

    runs = {"forward": forward, "backward": backward}
    seconds = medians(take_turns(runs, setting.rounds, setting.progress, "bandwidth", shape.device))
    n = shape.sources
    moved = {"forward": (n + 1) * shape.source_bytes, "backward": (2 * n + 1) * shape.source_bytes}
    return {name: moved[name] / seconds[name] for name in moved}


def decode_row(device: torch.device, sizes: GpuSizes, where: str, setting: Setting) -> RatioRow:
    steps = {
        name: captured(decode.decode_step(name, sizes.decoder, device, torch.bfloat16), device)
        for name in ("residual", "block")
    }
    taken = medians(take_turns(steps, 20 * setting.rounds, setting.progress, "decode step", device))
    return DECODE.row(where, f", {sizes.decoder}", taken["block"] / taken["residual"] - 1, milliseconds(taken))
