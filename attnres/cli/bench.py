"""Measure depth attention: operator, training step, memory and decoding, as ratios in one run.

    attnres bench
    attnres bench --threads 1 --rounds 31 --out bench.json
    attnres bench operator step
    attnres bench curves --out curves.json --figures docs/figures
    attnres bench gpu --check

Checks every contender's output and gradients against float64 first; one that is wrong gets no speed. Other packages
take part where they are installed: pip install -e '.[bench]'. Run it on a machine that does nothing else: the
contenders take turns, but a busy machine still blurs ratios this close to one.

The parts `operator`, `step`, `memory`, `decode` and `gpu` are what a plain `attnres bench` measures. `curves` (how the
cost grows with sources, tokens and channels), `parallel` (a pipeline of four processes: bytes sent with the
cross-stage cache and without, and the time of a step), `hf` (a model of transformers over its plain twin, and its
conversion), `kernels` (the Triton kernels compiled for GPUs that need not be there: registers, spills, shared memory,
launches per call), `traffic` (the bytes that a stack moves on a GPU, counted from shapes), `imports` (what importing
connections and operators adds to importing torch), `targets` (the CPU kernel compiled for x86-64-v2 to v4 over this
machine's own, in float32 and bfloat16), `look` (how long `attnres look` takes to answer) and `lab` (a step of the lab's
trainer on one core: tokens per second and its share of the core's peak) run when they are named.

`gpu --check` is the first command on a new GPU: in a few minutes it holds every operator, forward and backward, in
every dtype and at awkward sizes, and nine forms of the rules of attention over depth against float64; then it measures
the table, and leaves both in bench-gpu.json. If something is wrong it says what, exits with 1 and measures nothing.

Stopped, a bench prints and writes the rows that it has: `timeout -s INT 300 attnres bench gpu --out bench-gpu.json`
measures for five minutes.

Every row of the CPU says which instruction set its kernel has; ATTNRES_MARCH chooses another (attnres/ops/cpu.py).
"""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import tyro

from attnres.bench.parts import BY_DEFAULT, Part, check_needs, measure_parts
from attnres.cli._checks import check_at_least, check_output_file, check_output_folder, check_own_file
from attnres.cli._tables import Output, print_line, print_table
from attnres.cli._terminal import working
from attnres.errors import UsageError

CHECK_RECORD = Path("bench-gpu.json")


def command(
    parts: Annotated[tuple[Part, ...], tyro.conf.Positional] = (),
    threads: int | None = None,
    rounds: int = 15,
    quick: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
    out: Path | None = None,
    figures: Path | None = None,
    check: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
) -> int:
    """Bench.

    Args:
        parts: Measure only these parts.
        threads: Threads of torch; as many as the machine has cores when not given.
        rounds: How often each contender is measured; the table shows medians.
        quick: Tiny sizes, to see that everything runs. Its numbers mean nothing.
        out: Also write everything measured to this JSON file.
        figures: Draw the curves into this folder. Takes the part `curves`.
        check: First see whether all that runs on a GPU is right. Takes the part `gpu` alone.
    """
    if check and parts != ("gpu",):
        raise UsageError("--check is of the GPU: attnres bench gpu --check")
    check_needs(parts)
    out = out or (CHECK_RECORD if check else None)
    check_at_least(1, rounds=rounds, threads=threads)
    cores = os.cpu_count() or 1
    if threads is not None and threads > cores:
        raise UsageError(f"--threads must be at most {cores}, the cores of this machine, not {threads}")
    if figures is not None and "curves" not in parts:
        raise UsageError("--figures draws the curves: attnres bench curves --figures FOLDER")
    check_output_file("--out", out, ("rounds", "rows"))
    check_output_folder("--figures", figures)
    if figures is not None:
        from attnres.report.curves import CURVES

        check_own_file("--figures", figures / CURVES)
    import torch

    from attnres.bench import gpu_check
    from attnres.bench.measure import Row, Setting
    from attnres.bench.record import details, ratio_table, write_record

    torch.set_num_threads(threads or cores)
    torch.manual_seed(0)
    console = Output()
    checks: list[Row] = []
    rows: list[tuple[Part, Row]] = []
    try:
        with working(console, "measuring") as tell:
            setting = Setting(rounds, quick, tell)
            checks += gpu_check.measure(setting) if check else []
            right = gpu_check.passed(checks)
            for part_and_row in measure_parts(parts or BY_DEFAULT, setting) if right else ():
                rows.append(part_and_row)
    finally:  # stopped, too: a GPU is lent for minutes
        measured = [*checks, *(row for _, row in rows)]
        if measured:
            print_table(console, ratio_table(measured))
            print_line(console, details(measured))
            if out is not None:
                write_record(out, measured, setting)
    if figures is not None:
        from attnres.report.curves import draw_curves

        draw_curves([asdict(row) for part, row in rows if part == "curves"], figures)
    return 0 if right else 1
