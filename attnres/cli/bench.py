"""Measure depth attention: operator, training step, memory and decoding, as ratios in one run.

    attnres bench
    attnres bench --threads 1 --rounds 25 --out bench.json
    attnres bench operator step

Every contender's output and gradients are compared with float64 first; one that is wrong is not timed. Other packages
are measured where they are installed: pip install 'attnres[bench]'. Run it on a machine that does nothing else: the
contenders alternate, but a busy machine still blurs ratios this close to one.

operator: one read over PyTorch written plainly, its compiled form and other packages. decode: a token of our own model
and of an attached Qwen3. step: time and peak memory of a training step at three widths. gpu: the operator
against every other package, bandwidth, decoding.

measured is a ratio of medians: over the plain residual, below 1 is faster; with an x, how many times as fast we are.
spread has the quartiles of the rounds' own ratios. bandwidth is the ratio if every byte that must move came from memory
at the measured copy bandwidth; where caches keep some, the measured ratio can be lower. must is our goal on two
cores with AVX2.

Stopped, a bench prints and writes the rows that it has: `timeout -s INT 300 attnres bench gpu --out bench-gpu.json`
measures for five minutes.

Every row of the CPU names the instruction set of its kernel; ATTNRES_MARCH chooses another (attnres/ops/cpu.py).
"""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Annotated, Literal, get_args

import tyro

from attnres.cli._checks import check_new_file
from attnres.cli._tables import Output, print_line, print_table
from attnres.cli._terminal import working

Part = Literal["operator", "decode", "step", "gpu"]
"""The files of attnres/bench that define `measure(setting)`; they are measured in this order."""


def command(
    parts: Annotated[tuple[Part, ...], tyro.conf.Positional] = (),
    threads: int | None = None,
    rounds: int = 9,
    out: Path | None = None,
) -> int:
    """Bench.

    Args:
        parts: Measure only these parts.
        threads: Threads of torch; as many as the machine has cores when not given.
        rounds: How often each contender is measured, a third as often where there is no goal; the table shows medians.
        out: Also write everything measured to this new JSON file.
    """
    check_new_file("--out", out)
    import torch

    from attnres.bench.measure import RatioRow, Setting
    from attnres.bench.record import details, ratio_table, write_record

    torch.set_num_threads(threads or os.cpu_count() or 1)
    torch.manual_seed(0)
    console = Output()
    rows: list[RatioRow] = []
    try:
        with working(console, "measuring") as tell:
            setting = Setting(rounds, progress=tell)
            for part in get_args(Part):
                if not parts or part in parts:
                    # one by one: a stopped bench keeps what it has
                    for row in importlib.import_module(f"attnres.bench.{part}").measure(setting):
                        rows.append(row)
    finally:  # stopped, too: a GPU is lent for minutes
        if rows:
            print_table(console, ratio_table(rows))
            print_line(console, details(rows))
            if out is not None:
                write_record(out, rows, setting)
    return 0
