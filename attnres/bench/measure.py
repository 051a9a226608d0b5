"""How everything is measured here: contenders alternate, and only ratios of medians are compared.

So whatever disturbs the machine disturbs all of them. A contender whose output or gradients differ from float64 is not
timed.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context
from typing import Any, TypeVar

import torch
from torch import Tensor

from attnres.ops.cpu import instruction_set

NOT_MEASURED = "not measured"

CPU = torch.device("cpu")

GPU_SECONDS = 0.02

T = TypeVar("T")

Progress = Callable[[str], None]
Run = Callable[[], object]


@dataclass
class RatioRow:
    """One line of the table: a ratio of medians, what it must be, and what it was made of.

    A `must` that ends in "%" or "x" says how the ratio is written; a ratio of None was not measured.
    """

    what: str
    where: str
    must: str
    ratio: float | None = None
    details: dict[str, float | str] = field(default_factory=dict)
    spread: tuple[float, float] | None = None
    """The quartiles of the rounds' own ratios."""
    bandwidth: float | None = None
    """The ratio that the bytes which must move take at the measured copy bandwidth."""

    @property
    def measured(self) -> str:
        return NOT_MEASURED if self.ratio is None else self.written(self.ratio)

    def written(self, ratio: float) -> str:
        if self.must.endswith("%"):
            return f"{100 * ratio:.1f}%"
        return f"{ratio:.1f}x" if self.must.endswith("x") else f"{ratio:.3f}"


@dataclass(frozen=True)
class Setting:
    """What every part is told."""

    rounds: int = 9
    progress: Progress = lambda _: None

    @property
    def where(self) -> str:
        return f"{torch.get_num_threads()} CPU threads, {instruction_set()}"


Seconds = dict[str, list[float]]
"""What each contender took in each round."""


def take_turns(
    contenders: Mapping[str, Run], rounds: int, progress: Progress, what: str, device: torch.device = CPU
) -> Seconds:
    """The seconds of each, measured alternately after two rounds of warming up, or after one that took over a second.

    Waiting for a GPU costs more than a short call to it takes: as many calls are made before as fill GPU_SECONDS.
    """
    seconds: Seconds = {name: [] for name in contenders}
    calls = dict.fromkeys(contenders, 1)
    warm = 0.0
    for number in range(-2, rounds):
        if number == -1 and device.type == "cpu" and warm > 1:
            continue
        progress(f"{what}: round {max(0, number + 1)} of {rounds}")
        for name, run in contenders.items():
            taken = _timed(run, calls[name], device)
            if number >= 0:
                seconds[name].append(taken)
                continue
            warm += taken
            if device.type == "cuda":
                calls[name] = max(1, math.ceil(GPU_SECONDS / taken))
    return seconds


def medians(seconds: Seconds) -> dict[str, float]:
    return {name: statistics.median(values) for name, values in seconds.items()}


def spread(seconds: Seconds, name: str, baseline: str) -> tuple[float, float] | None:
    """The quartiles of the ratios to the baseline, round by round."""
    ratios = [a / b for a, b in zip(seconds[name], seconds[baseline], strict=True)]
    if len(ratios) < 2:
        return None
    low, _, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return low, high


def _timed(run: Run, calls: int, device: torch.device) -> float:
    _wait(device)
    start = time.perf_counter()
    for _ in range(calls):
        run()
    _wait(device)
    return (time.perf_counter() - start) / calls


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def why(error: Exception) -> str:
    """A contender failed, in a few words."""
    if isinstance(error, torch.OutOfMemoryError):
        return "out of memory"
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


def over(
    seconds: Seconds, name: str, baseline: str, what: str, where: str, must: str, bandwidth: float | None = None
) -> RatioRow:
    """A row of one contender over another, of what `take_turns` returned."""
    taken = medians(seconds)
    ratio = taken[name] / taken[baseline]
    return RatioRow(what, where, must, ratio, spread=spread(seconds, name, baseline), bandwidth=bandwidth)


def alone(function: Callable[..., T], *arguments: Any) -> T:
    """What a function of a module returns in a process that does nothing else."""
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        return process.submit(function, *arguments).result()


@contextmanager
def threads(count: int) -> Iterator[None]:
    """torch computes with this many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def milliseconds(medians: dict[str, float]) -> dict[str, float | str]:
    return {f"{name}, ms": 1e3 * seconds for name, seconds in medians.items()}


def outputs_and_gradients(
    function: Callable[..., Tensor], inputs: Sequence[Tensor], grad: Tensor, parameters: Sequence[Tensor] = ()
) -> list[Tensor]:
    """[h, and the gradients of `grad . h` by every input and parameter]"""
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    h = function(*leaves)
    return [h.detach(), *torch.autograd.grad(h, [*leaves, *parameters], grad)]


def worst_error(ours: Sequence[Tensor], exact: Sequence[Tensor]) -> float:
    """The largest of the relative errors in norm; NaN if any is."""
    return float(torch.stack([(a.double() - b).norm() / b.norm() for a, b in zip(ours, exact, strict=True)]).max())


def copy_bandwidth(device: torch.device = CPU) -> float:
    """Bytes read and written per second by a copy far larger than the caches."""
    source = torch.ones((1 if device.type == "cpu" else 8) * 64 * 2**20, device=device)
    target = torch.empty_like(source)
    seconds = take_turns({"copy": lambda: target.copy_(source)}, 7, lambda _: None, "copy", device)
    return 2 * source.nbytes / medians(seconds)["copy"]
