"""A training step of a model with each connection over the plain residual's: time, peak memory, and time by width.

Peak memory is taken in a process per step, as the highest resident size less what the process held before there was a
model. glibc keeps what is freed, in pieces that fit later or do not: the same step of `residual` held 845, 871 and
888 MB, further apart than the connections are. So every tensor of 64 kB or more gets pages of its own, which go when it
goes: the peak is then what the step holds, 681.3 MB each time.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.nn.functional as F

from attnres.bench.measure import RatioRow, Setting, milliseconds, take_turns
from attnres.model import Transformer, TransformerConfig


@dataclass(frozen=True)
class Rule:
    """A connection: what the table calls it, and its limits and goals over the plain residual's time and memory."""

    connection: str
    what: str
    time: tuple[str, str]
    memory: tuple[str, str] = ("1.15", "1.10")


RULES = {
    "block": Rule("block:block_size=4", "Block S=4", ("1.06", "1.03"), ("1.10", "1.05")),
    "full": Rule("full", "Full", ("1.20", "1.10"), ("1.25", "1.15")),
    "rms-block": Rule("rms-block:block_size=4", "RMS Block S=4", ("1.08", "1.05")),
    "delta": Rule("delta:block_size=4", "Delta Block S=4", ("1.08", "1.05")),
    "reads": Rule("block:block_size=4,reads=qkv-gate-up", "Block S=4, reads qkv-gate-up", ("1.12", "1.07")),
    "interlayer": Rule("interlayer:block_size=8", "Interlayer S=8", ("1.08", "1.05")),
}
NAMES = ("residual", *RULES)

WIDTHS = (64, 128, 512)
OF_WIDTHS = ("block", "full")
"""The widths besides the table's own, and whose steps are timed there: narrow models pay more for the connection."""

PROCESSES = 3


@dataclass(frozen=True)
class StepSizes:
    """The sizes of the model and its batch."""

    dim: int
    layers: int
    batch: int
    time: int

    def __str__(self) -> str:
        return f"d {self.dim}, {self.layers} layers, {self.batch}x{self.time} tokens"


FULL, QUICK = StepSizes(256, 12, 8, 256), StepSizes(64, 1, 2, 8)


def measure(setting: Setting) -> Iterator[RatioRow]:
    sizes = QUICK if setting.quick else FULL
    yield from _times(NAMES, sizes, setting)
    yield from _peaks(setting)
    for dim in WIDTHS[:1] if setting.quick else WIDTHS:
        yield from _times(("residual", *OF_WIDTHS), replace(sizes, dim=dim), setting)


def _times(names: tuple[str, ...], sizes: StepSizes, setting: Setting) -> list[RatioRow]:
    steps = {name: training_step(name, sizes) for name in names}
    medians = take_turns(steps, setting.rounds, setting.progress, f"training step, d {sizes.dim}")
    rows = [
        RatioRow(
            f"training step, {RULES[name].what} over residual, {sizes}",
            setting.where,
            *(RULES[name].time if sizes.dim == FULL.dim else ("-", "-")),
            medians[name] / medians["residual"],
        )
        for name in names[1:]
    ]
    rows[0].details |= milliseconds(medians)
    return rows


def _peaks(setting: Setting) -> list[RatioRow]:
    peaks: dict[str, list[float]] = {name: [] for name in NAMES}
    for number in range(PROCESSES):
        for name, taken in peaks.items():
            setting.progress(f"peak memory: {name}, process {number + 1} of {PROCESSES}")
            taken.append(in_a_process(name, setting.quick))
    median = {name: statistics.median(values) for name, values in peaks.items()}
    rows = [
        RatioRow(
            f"peak memory of that step, {rule.what} over residual",
            setting.where,
            *rule.memory,
            median[name] / median["residual"],
        )
        for name, rule in RULES.items()
    ]
    rows[0].details |= {
        f"{name}, MB": ", ".join(f"{peak / 1e6:.1f}" for peak in values) for name, values in peaks.items()
    }
    return rows


def training_step(name: str, sizes: StepSizes) -> Callable[[], None]:
    """Loss, gradients and AdamW update on fixed random tokens."""
    model = build_model(name, sizes.dim, sizes.layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    tokens = torch.randint(0, 256, (sizes.batch, sizes.time + 1))

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()).backward()
        optimizer.step()

    return step


def build_model(name: str, dim: int, layers: int) -> Transformer:
    connection = name if name == "residual" else RULES[name].connection
    return Transformer(TransformerConfig(dim=dim, layers=layers, heads=dim // 64, connection=connection))


def in_a_process(name: str, quick: bool) -> float:
    """`added_by_training` in a process that has done nothing else."""
    command = [sys.executable, "-m", __name__, name, str(torch.get_num_threads()), *["quick"] * quick]
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536"}
    return float(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment).stdout)


def added_by_training(name: str, quick: bool) -> int:
    """The bytes that two training steps add to what it takes to have torch at all."""
    training_step(name, QUICK)()  # loads the kernels and starts the threads
    before = resident_peak()
    step = training_step(name, QUICK if quick else FULL)
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


if __name__ == "__main__":
    connection, threads, *rest = sys.argv[1:]
    torch.set_num_threads(int(threads))
    print(added_by_training(connection, bool(rest)))
