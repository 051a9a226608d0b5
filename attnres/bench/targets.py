"""The CPU kernel compiled for each target that this machine can run, over its own, in float32 and bfloat16."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from dataclasses import replace

import torch

from attnres.bench import operator, readers
from attnres.bench.measure import Row, Setting, take_turns
from attnres.errors import UsageError
from attnres.ops import cpu
from attnres.ops.backends import native_backend

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
PASSES = ("forward", "backward")
MUST = {"x86-64-v3": "1.6"}
"""By target: what its time over this machine's own must not exceed."""


def measure(setting: Setting) -> list[Row]:
    """Processes of their own take turns, because only one kernel can be loaded in each.

    Raises:
        UsageError: no kernel can be compiled here.
    """
    if not cpu.load():
        raise UsageError("bench targets measures the CPU kernel, which cannot be built here: install g++ or set CXX")
    targets = (cpu.NATIVE, *cpu.runnable())
    taken: dict[tuple[str, str], list[tuple[float, ...]]] = {(t, dtype): [] for t in targets for dtype in DTYPES}
    turns = 1 if setting.quick else operator.TURNS
    rounds = max(1, setting.rounds // turns)
    for turn in range(turns):
        for target, dtype in taken:
            setting.progress(f"targets: {target}, {dtype}, process {turn + 1} of {turns}")
            taken[target, dtype].append(_in_a_process(target, dtype, rounds, setting.quick))
    medians = {
        (*key, name): statistics.median(times)
        for key, processes in taken.items()
        for name, times in zip(PASSES, zip(*processes, strict=True), strict=True)
    }

    def row(what: str, must: str, one: tuple[str, str, str], other: tuple[str, str, str]) -> Row:
        details: dict[str, float | str] = {f"{', '.join(key)}, ms": 1e3 * medians[key] for key in (one, other)}
        where = f"{torch.get_num_threads()} CPU threads"
        return Row(f"operator {one[2]}, {what}", where, must, "-", medians[one] / medians[other], details)

    shape = operator.QUICK if setting.quick else operator.FULL
    rows = []
    for name in PASSES:
        for dtype in DTYPES:
            for target in targets[1:]:
                what = f"{shape}, {dtype}: {target} over {cpu.NATIVE}"
                rows.append(row(what, MUST.get(target, "-"), (target, dtype, name), (cpu.NATIVE, dtype, name)))
        for target in targets:
            what = f"{shape}, {target}: bfloat16 over float32"
            rows.append(row(what, "-", (target, "bfloat16", name), (target, "float32", name)))
    return rows


def _in_a_process(target: str, dtype: str, rounds: int, quick: bool) -> tuple[float, ...]:
    command = [sys.executable, "-m", __name__, dtype, str(torch.get_num_threads()), str(rounds), *["quick"] * quick]
    environment = {**os.environ, "ATTNRES_MARCH": target}
    done = subprocess.run(command, stdout=subprocess.PIPE, env=environment, text=True, check=True)
    return tuple(map(float, done.stdout.split()))


def time_alone(shape: operator.Shape, rounds: int) -> list[float]:
    """Median seconds of PASSES on the kernel that ATTNRES_MARCH names."""
    assert native_backend("cpu") == "cpu", "the kernel could not be built"
    inputs, grad = operator.make_inputs(shape)
    leaves = [x.requires_grad_() for x in inputs]
    outputs: list[torch.Tensor] = []

    def forward() -> None:
        outputs.append(readers.ours(leaves[:-2], leaves[-2], leaves[-1]))

    def backward() -> None:
        outputs.pop().backward(grad)
        for leaf in leaves:
            leaf.grad = None

    medians = take_turns({"forward": forward, "backward": backward}, rounds, lambda _: None, "targets")
    return [medians[name] for name in PASSES]


if __name__ == "__main__":
    dtype_name, threads, number, *rest = sys.argv[1:]
    torch.manual_seed(0)
    torch.set_num_threads(int(threads))
    chosen = replace(operator.QUICK if rest else operator.FULL, dtype=DTYPES[dtype_name])
    print(*time_alone(chosen, int(number)))
