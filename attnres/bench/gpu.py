"""Everything that needs a CUDA device: the operator against every peer, bandwidth, decoding.

Without such a device one row says "not measured"; there is no estimate.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch

from attnres.bench import decode, operator, readers
from attnres.bench.measure import RatioRow, Run, Setting, copy_bandwidth, medians, milliseconds, take_turns

DECODER = decode.DecoderSizes(2048, 24)
WARM_UP = 3
"""Runs before a capture: they compile, and tune, what may do neither inside one."""


@dataclass(frozen=True)
class GpuSizes:
    """How much to measure."""

    dims: tuple[int, ...] = (1024, 2048, 4096)
    sources: int = 9
    operator_elements: int = 2**26  # of one source, batch x time x d: far more than the caches hold
    batch: int = 4
    decoder: decode.DecoderSizes = DECODER


def measure(setting: Setting) -> Iterable[RatioRow]:
    if torch.cuda.is_available():
        return measure_on(torch.device("cuda"), GpuSizes(), setting)
    return [RatioRow("operator, bandwidth and decoding on a GPU", "no GPU", "-")]


def measure_on(device: torch.device, sizes: GpuSizes, setting: Setting) -> Iterator[RatioRow]:
    """Measure on a device of any kind, so that all of this can be tested without a GPU.

    What needs no others comes first: most of the time goes into compiling them, and a bench that is stopped keeps its
    rows.
    """
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)
    copied = copy_bandwidth(device)
    yield decode_row(device, sizes, where, setting)
    tokens = sizes.operator_elements // sizes.batch
    shapes = [
        operator.OperatorShape(sizes.batch, tokens // dim, dim, sizes.sources, torch.bfloat16, device)
        for dim in sizes.dims
    ]
    for shape in shapes:
        for way, reached in bytes_per_second(shape, setting).items():
            yield _share(way, f"{shape}", where, reached, copied)
        yield from _backward_rows(shape, where, copied, setting)
    for shape in shapes:
        yield _operator_row(shape, where, setting)


def _operator_row(shape: operator.OperatorShape, where: str, setting: Setting) -> RatioRow:
    others, missing = readers.packages(shape.device)
    result = operator.compare(shape, {**readers.plain(), **others}, setting, missing, given_stacked=True)
    what = f"operator forward+backward over the fastest other, bf16, {shape}"
    return RatioRow(what, where, "1x", result.over_the_next(), result.details)


def _share(way: str, of: str, where: str, reached: float, copied: float) -> RatioRow:
    details: dict[str, float | str] = {"GB/s": reached / 1e9, "copy bandwidth, GB/s": copied / 1e9}
    return RatioRow(f"operator {way}, share of the copy bandwidth, {of}", where, "85%", reached / copied, details)


def _backward_rows(shape: operator.OperatorShape, where: str, copied: float, setting: Setting) -> Iterator[RatioRow]:
    """The backward pass in each other variant, until a GPU has chosen one."""
    if importlib.util.find_spec("triton") is None:
        return
    from attnres.ops import triton_backend

    chosen, others = triton_backend.BACKWARD, triton_backend.VARIANTS[1:]
    for variant in others:
        triton_backend.BACKWARD = variant
        try:
            reached = bytes_per_second(shape, setting)["backward"]
        finally:
            triton_backend.BACKWARD = chosen
        yield _share("backward", f"{shape}, {variant}", where, reached, copied)


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
    what = f"decode step with CUDA graphs, Block more than residual, {sizes.decoder}"
    return RatioRow(what, where, "2%", taken["block"] / taken["residual"] - 1, milliseconds(taken))


def captured(step: Run, device: torch.device) -> Run:
    """The step as a CUDA graph, all launches of which are one call without Python in between; itself elsewhere."""
    if device.type != "cuda":
        return step
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_UP):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()

    def replay(step: Run = step) -> None:  # held: the graph reads and writes its tensors where they are
        graph.replay()

    return replay
