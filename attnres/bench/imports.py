"""What importing attnres' connections and operators adds to importing torch.

Each round is a process of its own, which imports torch first and then what a model of one's own needs.
"""

from __future__ import annotations

import statistics
import subprocess
import sys

from attnres.bench.measure import Row, Setting

PROGRAM = """
import time
start = time.perf_counter()
import torch
between = time.perf_counter()
from attnres import depth_attention, make_connection, mixing_matrix
make_connection("block", 8, 2)
print(between - start, time.perf_counter() - between)
"""


def measure(setting: Setting) -> list[Row]:
    rounds = []
    for number in range(setting.rounds):
        setting.progress(f"imports: process {number + 1} of {setting.rounds}")
        rounds.append(import_seconds())
    torch_seconds, added = (statistics.median(seconds) for seconds in zip(*rounds, strict=True))
    what = "importing attnres after torch, over importing torch"
    details: dict[str, float | str] = {"torch, ms": 1e3 * torch_seconds, "attnres, ms (aim: under 50)": 1e3 * added}
    return [Row(what, "one process", "10%", "5%", added / torch_seconds, details)]


def import_seconds() -> tuple[float, float]:
    """Seconds to import torch, and then attnres, in a process that has done nothing else."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True, check=True)
    first, second = map(float, done.stdout.split())
    return first, second
