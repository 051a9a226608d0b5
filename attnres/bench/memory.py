"""Peak resident memory of a training step, over the plain residual's.

Each step runs in a process of its own. What counts is what it held at its highest less what it held before there was a
model. glibc keeps what is freed, in pieces that fit later or do not: the same step of `residual` held 845, 871 and
888 MB, more apart than the rules are. So every tensor of 64 kB or more gets pages of its own, which go when it goes:
what is measured there is what the step holds, 681.3 MB each time.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
from pathlib import Path

import torch

from attnres.bench.measure import Row, Setting
from attnres.bench.step import CONNECTIONS, FULL, QUICK, WHAT, training_step

PROCESSES = 3

TARGETS = {"block": ("1.10", "1.05"), "full": ("1.25", "1.15")}
"""What the peak must, and should, be of the plain residual's; of the others, OTHERS."""

OTHERS = ("1.15", "1.10")


def measure(setting: Setting) -> list[Row]:
    peaks: dict[str, list[float]] = {name: [] for name in CONNECTIONS}
    for number in range(PROCESSES):
        for name in CONNECTIONS:
            setting.progress(f"peak memory: {name}, process {number + 1} of {PROCESSES}")
            peaks[name].append(in_a_process(name, setting.quick))
    median = {name: statistics.median(values) for name, values in peaks.items()}
    details: dict[str, float | str] = {
        f"{name}, MB": ", ".join(f"{peak / 1e6:.1f}" for peak in values) for name, values in peaks.items()
    }
    first, *others = (
        Row(
            f"peak memory of that step, {what} over residual",
            setting.where,
            *TARGETS.get(name, OTHERS),
            median[name] / median["residual"],
        )
        for name, what in WHAT.items()
    )
    first.details |= details
    return [first, *others]


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
