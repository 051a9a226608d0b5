"""What `attnres bench` measures: one function per row of its table.

Every ratio is of medians over one run in which the contenders take turns, so that what disturbs the machine disturbs
them alike. A contender whose output or any gradient is off from float64 gets no speed.
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from attnres.generate import KVCache
from attnres.model import Transformer, TransformerConfig
from attnres.ops import depth_attention

NOT_MEASURED = "not measured"
TOLERANCE = 1e-4  # relative, in norm: float32 over a few hundred additions

Progress = Callable[[str], None]


@dataclass
class Row:
    """One line of the table: a ratio, what it must and should be, and what it was made of."""

    what: str
    where: str
    must: str
    aim: str
    ratio: float | None = None
    details: dict[str, float | str] = field(default_factory=dict)


@dataclass(frozen=True)
class Sizes:
    """How much to measure."""

    batch: int = 8
    time: int = 256
    operator_dim: int = 512
    sources: int = 9
    dim: int = 256
    layers: int = 12
    decode_dim: int = 512
    rounds: int = 15


def operator_rows(sizes: Sizes, where: str, progress: Progress) -> list[Row]:
    """The operator forward and backward, over PyTorch written plainly, and over its compiled form."""
    shape, d = (sizes.batch, sizes.time, sizes.operator_dim), sizes.operator_dim
    sources = [torch.randn(shape) for _ in range(sizes.sources)]
    inputs = [*sources, torch.randn(d) / d**0.5, 1 + torch.randn(d) / d**0.5]
    grad = torch.randn(shape)
    contenders: dict[str, Callable[..., Tensor]] = {
        "attnres": lambda *x: depth_attention(x[:-2], x[-2], x[-1]),
        "stacked": lambda *x: stacked(torch.stack(x[:-2]), x[-2], x[-1]),
        "compiled reference": torch.compile(lambda *x: depth_attention(x[:-2], x[-2], x[-1], backend="reference")),
        "compiled stacked": torch.compile(lambda *x: stacked(torch.stack(x[:-2]), x[-2], x[-1])),
    }
    exact = _outputs(lambda *x: stacked(torch.stack(x[:-2]), x[-2], x[-1]), [x.double() for x in inputs], grad.double())
    right, details = {}, {}
    for name, function in contenders.items():
        progress(f"operator: checking {name} against float64")
        error = max(map(_error, _outputs(function, inputs, grad), exact))
        details[f"{name}, error"] = error
        if error <= TOLERANCE:
            right[name] = function
    leaves = [x.requires_grad_() for x in inputs]

    def forward_backward(function: Callable[..., Tensor]) -> Callable[[], None]:
        def run() -> None:
            for leaf in leaves:
                leaf.grad = None
            function(*leaves).backward(grad)

        return run

    medians = take_turns(
        {name: forward_backward(function) for name, function in right.items()}, sizes.rounds, progress, "operator"
    )
    moved = grad.nbytes * (3 * sizes.sources + 2)  # read and written once each: v, h; then v, dh, dv
    bandwidth = copy_bandwidth()
    details |= {f"{name}, ms": 1e3 * seconds for name, seconds in medians.items()}
    details |= {"physical limit, ms": 1e3 * moved / bandwidth, "copy bandwidth, GB/s": bandwidth / 1e9}
    if "attnres" in medians:
        details["share of the copy bandwidth"] = moved / bandwidth / medians["attnres"]
    what = f"operator forward+backward, {_size(sizes)}, d {d}, {sizes.sources} sources"
    return [
        Row(f"{what}: over stacked eager PyTorch", where, "20x", "40x", _times(medians, "stacked"), details),
        Row(f"{what}: over torch.compile of the reference", where, "3x", "6x", _times(medians, "compiled reference")),
    ]


def step_rows(sizes: Sizes, where: str, progress: Progress) -> list[Row]:
    """A training step of a model with each connection, over the plain residual's."""
    steps = {name: training_step(name, sizes) for name in ("residual", "block", "full")}
    medians = take_turns(steps, sizes.rounds, progress, "training step")
    details: dict[str, float | str] = {f"{name}, ms": 1e3 * seconds for name, seconds in medians.items()}
    ratio = {name: seconds / medians["residual"] for name, seconds in medians.items()}
    what = f"training step, {{}} over residual, d {sizes.dim}, {sizes.layers} layers, {_size(sizes)}"
    return [
        Row(what.format("Block S=4"), where, "1.06", "1.03", ratio["block"], details),
        Row(what.format("Full"), where, "1.20", "1.10", ratio["full"]),
    ]


def memory_rows(sizes: Sizes, where: str, progress: Progress) -> list[Row]:
    """Peak resident memory of that step, each in a process of its own, over what the process had before the model."""
    peaks = {}
    for name in ("residual", "block", "full"):
        progress(f"peak memory: {name}")
        code = (
            f"from attnres.cli import _bench; _bench.print_peak({name!r}, _bench.{sizes!r}, {torch.get_num_threads()})"
        )
        run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        peaks[name] = float(run.stdout)
    details: dict[str, float | str] = {f"{name}, MB": peak / 1e6 for name, peak in peaks.items()}
    what = "peak memory of that step, {} over residual"
    return [
        Row(what.format("Block S=4"), where, "1.10", "1.05", peaks["block"] / peaks["residual"], details),
        Row(what.format("Full"), where, "1.25", "1.15", peaks["full"] / peaks["residual"]),
    ]


def decode_row(sizes: Sizes, where: str, progress: Progress) -> Row:
    """One token at batch 1 behind a short prompt."""
    steps = {name: decode_step(name, sizes) for name in ("residual", "block")}
    medians = take_turns(steps, 20 * sizes.rounds, progress, "decode step")
    details: dict[str, float | str] = {f"{name}, ms": 1e3 * seconds for name, seconds in medians.items()}
    what = f"decode step at batch 1, Block over residual, d {sizes.decode_dim}, {sizes.layers} layers"
    return Row(what, where, "1.06", "1.02", medians["block"] / medians["residual"], details)


def gpu_rows() -> list[Row]:
    """What needs a GPU. There is no estimate."""
    where = "one H100/H200-class GPU"
    return [
        Row("operator and whole stack forward+backward against every peer, bf16", where, "fastest", "1.5x the next"),
        Row("share of peak memory bandwidth, forward / backward", where, "75%", "90%"),
        Row("decode overhead with CUDA graphs", where, "2%", "1%"),
    ]


def stacked(v: Tensor, query: Tensor, gain: Tensor) -> Tensor:
    """Depth attention as it is usually written, over one tensor of all sources."""
    keys = F.rms_norm(v, v.shape[-1:], gain, 1e-6)
    weights = (keys * query).sum(-1).softmax(0)
    return (weights.unsqueeze(-1) * v).sum(0)


def training_step(name: str, sizes: Sizes) -> Callable[[], None]:
    """Loss, gradients and AdamW update on fixed random tokens."""
    model = build_model(name, sizes.dim, sizes)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    tokens = torch.randint(0, 256, (sizes.batch, sizes.time + 1))

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()).backward()
        optimizer.step()

    return step


def decode_step(name: str, sizes: Sizes) -> Callable[[], None]:
    model = build_model(name, sizes.decode_dim, sizes)
    caches = [KVCache(model.config, 1, torch.float32, torch.device("cpu")) for _ in range(sizes.layers)]
    prompt, token = torch.randint(0, 256, (1, 32)), torch.randint(0, 256, (1, 1))
    with torch.inference_mode():
        model(prompt, caches)

    @torch.inference_mode()
    def step() -> None:
        for cache in caches:
            cache.length = 32
        model(token, caches, 32)

    return step


def build_model(name: str, dim: int, sizes: Sizes) -> Transformer:
    options = {"block_size": 4} if name == "block" else {}
    config = TransformerConfig(
        dim=dim, layers=sizes.layers, heads=dim // 64, connection=name, connection_options=dict(options)
    )
    return Transformer(config)


def print_peak(name: str, sizes: Sizes, threads: int) -> None:
    """In a process of its own: the bytes that two training steps add to what it takes to have torch at all."""
    torch.set_num_threads(threads)
    small = Sizes(batch=1, time=8, dim=64, layers=1)
    training_step(name, small)()  # loads the kernels and starts the threads
    before = _resident_peak()
    step = training_step(name, sizes)
    for _ in range(2):
        step()
    print(_resident_peak() - before)


def take_turns(
    contenders: dict[str, Callable[[], None]], rounds: int, progress: Progress, what: str
) -> dict[str, float]:
    """The median seconds of each, measured alternately after two rounds of warming up."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(-2, rounds):
        progress(f"{what}: round {max(0, number + 1)} of {rounds}")
        for name, run in contenders.items():
            start = time.perf_counter()
            run()
            if number >= 0:
                seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in seconds.items()}


def copy_bandwidth() -> float:
    """Bytes read and written per second by a copy far larger than the caches."""
    source = torch.ones(64 * 2**20)
    target = torch.empty_like(source)
    seconds = take_turns({"copy": lambda: target.copy_(source)}, 7, lambda _: None, "copy")["copy"]  # type: ignore
    return 2 * source.nbytes / seconds


def _outputs(function: Callable[..., Tensor], inputs: list[Tensor], grad: Tensor) -> list[Tensor]:
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    h = function(*leaves)
    return [h.detach(), *torch.autograd.grad(h, leaves, grad)]


def _error(one: Tensor, exact: Tensor) -> float:
    return float((one.double() - exact).norm() / exact.norm())


def _times(medians: dict[str, float], over: str) -> float | None:
    return medians[over] / medians["attnres"] if {over, "attnres"} <= medians.keys() else None


def _size(sizes: Sizes) -> str:
    return f"{sizes.batch}x{sizes.time} tokens"


def _resident_peak() -> int:
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # bytes on macOS
    # Not getrusage on Linux: its figure begins at what the parent process held.
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
