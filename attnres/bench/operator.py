"""The operator forward and backward, over PyTorch written plainly, its compiled form and the other packages."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

import torch
from torch import Tensor

from attnres.bench import readers
from attnres.bench.measure import (
    CPU,
    RatioRow,
    Run,
    Setting,
    alone,
    copy_bandwidth,
    medians,
    milliseconds,
    outputs_and_gradients,
    take_turns,
    why,
    worst_error,
)
from attnres.bench.readers import Read

TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 1e-2}
"""Relative, in norm: float32 over a few hundred additions; two roundings to bfloat16."""

TURNS = 2

OTHERS = (
    ("stacked", "stacked eager PyTorch over ours", "20x"),
    ("compiled reference", "torch.compile of the reference over ours", "3x"),
    ("fla-core", "fla-core over ours", "1x"),
)
"""Contenders of the table, and how many times as fast as each we must be."""


@dataclass(frozen=True)
class OperatorShape:
    """The sizes of one call."""

    batch: int
    time: int
    dim: int
    sources: int
    dtype: torch.dtype = torch.float32
    device: torch.device = CPU

    def __str__(self) -> str:
        return f"{self.batch}x{self.time} tokens, d {self.dim}, {self.sources} sources"

    @property
    def source_bytes(self) -> int:
        return self.batch * self.time * self.dim * self.dtype.itemsize


SHAPE = OperatorShape(8, 256, 512, 9)


@dataclass
class ContenderTimes:
    """What the contenders took at one shape."""

    seconds: dict[str, float] = field(default_factory=dict)  # of those that are right
    errors: dict[str, float] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)  # why

    @property
    def details(self) -> dict[str, float | str]:
        return {
            **milliseconds(self.seconds),
            **{f"{name}, error": error for name, error in self.errors.items()},
            **{name: f"not measured, {reason}" for name, reason in self.missing.items()},
        }

    def over(self, name: str, ours: float | None = None) -> float | None:
        """How many times faster we are than it, or would be with these seconds."""
        if not {"attnres", name} <= self.seconds.keys():
            return None
        return self.seconds[name] / (ours or self.seconds["attnres"])

    def over_the_next(self) -> float | None:
        """How many times faster we are than the fastest of the others."""
        others = [name for name in self.seconds if name.partition(",")[0] != "attnres"]
        return self.over(min(others, key=self.seconds.__getitem__)) if others else None


def measure(setting: Setting) -> list[RatioRow]:
    others, missing = readers.packages(CPU)
    result, right = check(SHAPE, {**readers.plain(), **others}, setting, missing)
    result.seconds = in_processes_of_their_own(right, SHAPE, setting)
    bandwidth = copy_bandwidth()
    bound = bytes_to_move(SHAPE) / bandwidth
    rows = [
        RatioRow(f"operator: {what}", setting.where, must, result.over(name), bandwidth=result.over(name, bound))
        for name, what, must in OTHERS
    ]
    rows[0].details = result.details | {
        "limit of the bandwidth, ms": 1e3 * bound,
        "copy bandwidth, GB/s": bandwidth / 1e9,
        "sizes": f"forward and backward, {SHAPE}",
    }
    return rows


def in_processes_of_their_own(names: Collection[str], shape: OperatorShape, setting: Setting) -> dict[str, float]:
    """Median seconds of contenders that are right, each in processes that do nothing else; they take turns.

    In one process they disturb each other, and so does the check: what one frees changes when glibc gives memory back
    to the system for all, and page faults are more than half of some contenders' time.
    """
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(TURNS):
        for name, taken in seconds.items():
            setting.progress(f"operator: {name}, process {turn + 1} of {TURNS}")
            taken.append(alone(time_alone, name, max(1, setting.rounds // TURNS), shape, torch.get_num_threads()))
    return {name: statistics.median(taken) for name, taken in seconds.items()}


def compare(
    shape: OperatorShape,
    contenders: dict[str, Read],
    setting: Setting,
    missing: dict[str, str],
    given_stacked: bool = False,
) -> ContenderTimes:
    """Forward and backward of those whose output and gradients are right, in this process.

    given_stacked: whether those that read one tensor of all sources are also measured on one that is there already.
    """
    result, right = check(shape, contenders, setting, missing)
    inputs, grad = make_inputs(shape)
    leaves = [x.requires_grad_() for x in inputs]
    runs = {name: _forward_backward(_flat(read), leaves, grad) for name, read in right.items()}
    if given_stacked:
        bank = torch.stack(leaves[:-2]).detach().requires_grad_()
        for name in filter(right.__contains__, readers.STACKING):
            runs[f"{name}, its stack given"] = _forward_backward(right[name], [bank, *leaves[-2:]], grad)
    result.seconds = medians(take_turns(runs, setting.rounds, setting.progress, f"operator, {shape}", shape.device))
    return result


def check(
    shape: OperatorShape, contenders: dict[str, Read], setting: Setting, missing: dict[str, str]
) -> tuple[ContenderTimes, dict[str, Read]]:
    """The contenders' errors against float64, and those that are right."""
    inputs, grad = make_inputs(shape)
    exact = outputs_and_gradients(_flat(readers.stacked), [x.double() for x in inputs], grad.double())
    result = ContenderTimes(missing=dict(missing))
    right: dict[str, Read] = {}
    for name, read in contenders.items():
        setting.progress(f"operator, {shape}: checking {name} against float64")
        try:
            result.errors[name] = worst_error(outputs_and_gradients(_flat(read), inputs, grad), exact)
        except Exception as error:  # whatever another package raises is its result
            result.missing[name] = why(error)
            continue
        if result.errors[name] <= TOLERANCE[shape.dtype]:
            right[name] = read
    return result, right


def bytes_to_move(shape: OperatorShape) -> int:
    """Forward and backward, once each: v, h; then v, dh, dv."""
    return shape.source_bytes * (3 * shape.sources + 2)


def make_inputs(shape: OperatorShape) -> tuple[list[Tensor], Tensor]:
    """(sources, query and gain), and a gradient of the output."""

    def normal(*size: int) -> Tensor:
        return torch.randn(size, device=shape.device)

    size, d = (shape.batch, shape.time, shape.dim), shape.dim
    sources = [normal(*size).to(shape.dtype) for _ in range(shape.sources)]
    vectors = [(normal(d) / d**0.5).to(shape.dtype), (1 + normal(d) / d**0.5).to(shape.dtype)]
    return [*sources, *vectors], normal(*size).to(shape.dtype)


def _flat(read: Read) -> Callable[..., Tensor]:
    return lambda *x: read(x[:-2], x[-2], x[-1])


def _forward_backward(function: Callable[..., Tensor], leaves: list[Tensor], grad: Tensor) -> Run:
    def run() -> None:
        function(*leaves).backward(grad)
        for leaf in leaves:  # here: whoever made the gradients pays for giving their memory back
            leaf.grad = None

    return run


def time_alone(name: str, rounds: int, shape: OperatorShape, threads: int) -> float:
    """Median seconds of one contender."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    inputs, grad = make_inputs(shape)
    read = readers.on_cpu(name)
    run = _forward_backward(_flat(read), [x.requires_grad_() for x in inputs], grad)
    return medians(take_turns({name: run}, rounds, lambda _: None, "operator"))[name]
