"""Everything that needs a CUDA device: the operator and whole stacks against every peer, bandwidth, decoding.

Without such a device every row says "not measured"; there is no estimate.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from attnres.bench import decode, operator, readers, stack
from attnres.bench.measure import Row, Run, Setting, copy_bandwidth, milliseconds, take_turns
from attnres.torch_private import compiler_config

DECODER = decode.Sizes(2048, 24)


@dataclass(frozen=True)
class Sizes:
    """How much to measure."""

    dims: tuple[int, ...] = (1024, 2048, 4096)
    sublayers: tuple[int, ...] = (32, 64)
    sources: int = 9
    block_size: int = 8
    operator_elements: int = 2**26  # of one source, batch x time x d: far more than the caches hold
    stack_elements: int = 2**24  # the usual form keeps several times all sources of all sites
    batch: int = 4
    decoder: decode.Sizes = DECODER


QUICK = Sizes((64,), (4,), 3, 2, 2**12, 2**12, 2, decode.QUICK)

WITHOUT = [
    ("operator forward+backward over the fastest other, bf16", "1x", "1x"),
    ("whole stack forward+backward over the fastest other, bf16", "1x", "1.5x"),
    ("operator forward, share of peak memory bandwidth", "75%", "90%"),
    ("operator backward, share of peak memory bandwidth", "75%", "90%"),
    ("decode step with CUDA graphs, Block more than residual", "2%", "1%"),
]


def measure(setting: Setting) -> list[Row]:
    if not torch.cuda.is_available():
        return [Row(what, "one H100/H200-class GPU", must, aim) for what, must, aim in WITHOUT]
    return measure_on(torch.device("cuda"), QUICK if setting.quick else Sizes(), setting)


def measure_on(device: torch.device, sizes: Sizes, setting: Setting) -> list[Row]:
    """Measure on a device of any kind, so that all of this can be tested without a GPU."""
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)
    operators, stacks, shares = WITHOUT[0], WITHOUT[1], WITHOUT[2:4]
    peak, copied = peak_bandwidth(device), copy_bandwidth(device)
    rows = []
    for dim in sizes.dims:
        tokens = sizes.operator_elements // dim // sizes.batch
        shape = operator.Shape(sizes.batch, tokens, dim, sizes.sources, torch.bfloat16, device)
        others, missing = readers.packages(device)
        result = operator.compare(shape, {**readers.plain(), **others}, setting, missing)
        rows.append(_row(operators, f", {shape}", where, result.over_the_next(), result.details))
        moved = bytes_per_second(shape, setting)
        for share, direction in zip(shares, moved, strict=True):
            details: dict[str, float | str] = {
                "GB/s": moved[direction] / 1e9,
                "copy bandwidth, GB/s": copied / 1e9,
                "peak bandwidth, GB/s": peak / 1e9 if peak else "unknown",
            }
            rows.append(_row(share, f", {shape}", where, moved[direction] / peak if peak else None, details))
        for kind in ("identity", "SwiGLU"):
            for sublayers in sizes.sublayers:
                tokens = sizes.stack_elements // dim // sizes.batch
                form = stack.Shape(kind, sublayers, dim, sizes.batch, tokens, sizes.block_size, torch.bfloat16, device)
                # One compiled reader sees every number of sources of the stack.
                with compiler_config.patch(recompile_limit=sublayers):
                    result = stack.compare(form, setting)
                rows.append(_row(stacks, f", {form}", where, result.over_the_next(), result.details))
    return [*rows, decode_row(device, sizes, where, setting)]


def _row(kind: tuple[str, str, str], size: str, where: str, ratio: float | None, details: dict) -> Row:
    what, must, aim = kind
    return Row(what + size, where, must, aim, ratio, details)


def bytes_per_second(shape: operator.Shape, setting: Setting) -> dict[str, float]:
    """The bytes that must move, once each, over the time that our operator takes: forward and backward."""
    (*sources, query, gain), grad = operator.make_inputs(shape)
    leaves = [x.requires_grad_() for x in (*sources, query, gain)]
    h = readers.ours(sources, query, gain)

    def forward() -> None:
        with torch.no_grad():
            readers.ours(sources, query, gain)

    def backward() -> None:
        torch.autograd.grad(h, leaves, grad, retain_graph=True)

    seconds = take_turns(
        {"forward": forward, "backward": backward}, setting.rounds, setting.progress, "bandwidth", shape.device
    )
    n = shape.sources
    moved = {"forward": (n + 1) * shape.source_bytes, "backward": (2 * n + 1) * shape.source_bytes}
    return {name: moved[name] / seconds[name] for name in moved}


def peak_bandwidth(device: torch.device) -> float | None:
    """Bytes per second that the memory is clocked for; None where the driver does not say."""
    if device.type != "cuda":
        return None
    properties = torch.cuda.get_device_properties(device)
    try:
        return 2 * 1e3 * properties.memory_clock_rate * properties.memory_bus_width / 8  # two transfers per clock
    except AttributeError:
        return None


def decode_row(device: torch.device, sizes: Sizes, where: str, setting: Setting) -> Row:
    steps = {
        name: captured(decode.decode_step(name, sizes.decoder, device, torch.bfloat16), device)
        for name in ("residual", "block")
    }
    medians = take_turns(steps, 20 * setting.rounds, setting.progress, "decode step", device)
    ratio = medians["block"] / medians["residual"] - 1
    return _row(WITHOUT[4], f", {sizes.decoder}", where, ratio, milliseconds(medians))


def captured(step: Run, device: torch.device) -> Run:
    """The step as a CUDA graph; as it is on other devices."""
    if device.type != "cuda":
        return step
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):  # tunes and compiles what is not to be captured
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay
