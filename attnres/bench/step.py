"""A training step of a model with each connection over the plain residual's: time at three widths, and peak memory.

A step is the forward and the backward pass, without the optimizer. The loop x = x + f(x), written by hand, is measured,
too: it shows that the plain residual here is no slow baseline.

Peak memory is measured in a process per connection: the highest resident size minus that before there was a model.
glibc keeps freed memory, which made the same step of `residual` hold 845 to 888 MB. So every tensor of 64 kB or more
gets pages of its own, which are returned when it is freed: the peak is then 681.3 MB each time.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnres.analysis.cost import memory_traffic
from attnres.bench.measure import (
    RatioRow,
    Seconds,
    Setting,
    alone,
    copy_bandwidth,
    medians,
    milliseconds,
    over,
    take_turns,
    threads,
)
from attnres.model import Transformer, TransformerConfig

BLOCK_SIZE = 4
RULES = {
    "block": ("Block", f"block:block_size={BLOCK_SIZE}"),
    "full": ("Full", "full"),
    "rms-block": ("RMS Block", f"rms-block:block_size={BLOCK_SIZE}"),
    "delta": ("Delta", f"delta:block_size={BLOCK_SIZE}"),
    "reads": ("Reads q k v gate up of Block", f"block:block_size={BLOCK_SIZE},reads=qkv-gate-up"),
    "interlayer": ("Interlayer", f"interlayer:block_size={2 * BLOCK_SIZE}"),
}
"""What the table calls each connection, and how a model names it."""


@dataclass(frozen=True)
class StepSizes:
    """The sizes of a model and its batch, and what time must be over the plain residual's, by connection."""

    dim: int
    layers: int
    batch: int
    time: int
    must: dict[str, str]
    threads: int | None = None

    def __str__(self) -> str:
        alone = ", 1 thread" if self.threads == 1 else ""
        return f"width {self.dim}, {self.layers} layers, {self.batch}x{self.time} tokens{alone}"


WIDE = StepSizes(256, 12, 8, 256, dict.fromkeys(RULES, "-") | {"block": "1.03", "full": "1.08"})
NARROW = StepSizes(64, 16, 4, 256, {"block": "1.08", "full": "1.15", "rms-block": "1.12"}, threads=1)
NARROWEST = StepSizes(16, 16, 4, 256, {"block": "1.25", "full": "-"}, threads=1)
SMALL = StepSizes(64, 1, 2, 8, {})
"""A step that takes no memory to speak of."""
MEMORY = {"block": "1.06", "full": "1.14"}
"""What peak memory must be at the size WIDE."""


def measure(setting: Setting) -> Iterator[RatioRow]:
    bandwidth = copy_bandwidth()
    for sizes in (WIDE, NARROW, NARROWEST):
        with threads(sizes.threads or torch.get_num_threads()):
            yield from _times(sizes, bandwidth, setting)
    yield from _peaks(WIDE, setting)


def _times(sizes: StepSizes, bandwidth: float, setting: Setting) -> list[RatioRow]:
    """The rules that have a goal in all rounds, the others in a third of them: a round of all takes ten seconds."""
    goals = [name for name, must in sizes.must.items() if must != "-"]
    others = [name for name in sizes.must if name not in goals]
    first = _turns(["by hand", *goals], sizes, setting.rounds, setting)
    second = _turns(others, sizes, -(-setting.rounds // 3), setting) if others else {}
    plain, rows = medians(first)["residual"], []
    for seconds, names in ((first, ["by hand", *goals]), (second, others)):
        for name in names:
            what = RULES[name][0] if name in RULES else "x = x + f(x) by hand"
            limit = 1 + _extra_bytes(sizes) / bandwidth / plain if name == "block" else None
            must = sizes.must.get(name, "-")
            rows.append(over(seconds, name, "residual", f"step, {sizes}: {what}", setting.where, must, limit))
    rows[0].details |= milliseconds(medians(second) | medians(first))
    return rows


def _turns(names: list[str], sizes: StepSizes, rounds: int, setting: Setting) -> Seconds:
    steps = {name: training_step(name, sizes) for name in ("residual", *names)}
    return take_turns(steps, rounds, setting.progress, f"training step, {sizes}")


def _extra_bytes(sizes: StepSizes) -> float:
    """What Block moves more than the plain residual does, if no cache keeps anything.

    The backward pass moves twice what the forward pass does: it reads the same and writes a gradient for each.
    """
    sublayers = 2 * sizes.layers
    traffic = memory_traffic(sizes.dim, BLOCK_SIZE, Fraction(sublayers, BLOCK_SIZE))
    units = {row.connection: row.units for row in traffic}
    extra = units["block, two-phase"] - units["residual"]
    return 3 * extra * 4 * sizes.dim * sublayers * sizes.batch * sizes.time


def _peaks(sizes: StepSizes, setting: Setting) -> list[RatioRow]:
    peaks = {}
    for name in ("residual", *RULES):
        setting.progress(f"peak memory: {name}")
        peaks[name] = peak(name, sizes)
    rows = [
        RatioRow(
            f"peak memory of a step, width {sizes.dim}: {what}",
            setting.where,
            MEMORY.get(name, "-"),
            peaks[name] / peaks["residual"],
        )
        for name, (what, _) in RULES.items()
    ]
    rows[0].details |= {f"{name}, MB": peak / 1e6 for name, peak in peaks.items()}
    return rows


def training_step(name: str, sizes: StepSizes) -> Callable[[], None]:
    """Loss and gradients on fixed random tokens."""
    model = build_model("residual" if name == "by hand" else name, sizes.dim, sizes.layers)
    forward = partial(_by_hand, model) if name == "by hand" else model
    tokens = torch.randint(0, 256, (sizes.batch, sizes.time + 1))

    def step() -> None:
        model.zero_grad(set_to_none=True)
        F.cross_entropy(forward(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()).backward()

    return step


def _by_hand(model: Transformer, tokens: Tensor) -> Tensor:
    x = model.embed(tokens)
    for sublayer in model.bound_sublayers(tokens.shape[1]):
        x = x + sublayer(x)
    return model.logits(x)


def build_model(name: str, dim: int, layers: int) -> Transformer:
    """A model whose queries are random, as after some training: at zero every weight is the same."""
    connection = name if name == "residual" else RULES[name][1]
    model = Transformer(TransformerConfig(dim=dim, layers=layers, heads=max(1, dim // 64), connection=connection))
    for key, parameter in model.connection.named_parameters():
        if "query" in key:
            nn.init.normal_(parameter, std=0.1)
    return model


def peak(name: str, sizes: StepSizes) -> int:
    """`added_by_training` in a process that has done nothing else and returns what it frees."""
    os.environ["MALLOC_MMAP_THRESHOLD_"] = "65536"
    try:
        return alone(added_by_training, name, sizes, torch.get_num_threads())
    finally:
        del os.environ["MALLOC_MMAP_THRESHOLD_"]


def added_by_training(name: str, sizes: StepSizes, threads: int) -> int:
    """The bytes that two training steps add to what it takes to have torch at all."""
    torch.set_num_threads(threads)
    training_step(name, SMALL)()  # loads the kernels and starts the threads
    before = resident_peak()
    step = training_step(name, sizes)
    for _ in range(2):
        step()
    return resident_peak() - before


def resident_peak() -> int:
    """The most bytes that this process has held."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # bytes on macOS
    # Not getrusage on Linux: its figure begins at what the parent process held.
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
