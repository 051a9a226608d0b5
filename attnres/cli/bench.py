"""Measure depth attention: operator, training step, memory and decoding, as ratios in one run.

    attnres bench
    attnres bench --threads 1 --rounds 31 --out bench.json
    attnres bench --only operator step

Checks every contender's output and gradients against float64 first. Run it on a machine that does nothing else: the
contenders take turns, but a busy machine still blurs ratios this close to one.
"""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import time
from pathlib import Path
from typing import Annotated, Literal

import torch
import tyro
from rich.console import Console
from rich.table import Table

from attnres.cli import _bench
from attnres.cli._bench import NOT_MEASURED, Row, Sizes
from attnres.errors import UsageError

Part = Literal["operator", "step", "memory", "decode"]


def command(
    threads: int | None = None,
    rounds: int = 15,
    only: tuple[Part, ...] = (),
    quick: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
    out: Path | None = None,
) -> int:
    """Bench.

    Args:
        threads: Threads of torch; as many as the machine has cores when not given.
        rounds: How often each contender is measured; the table shows medians.
        only: Measure only these parts.
        quick: Tiny sizes, to see that everything runs. Its numbers mean nothing.
        out: Also write everything measured to this JSON file.
    """
    if rounds < 1 or (threads is not None and threads < 1):
        raise UsageError("rounds and threads must be at least 1")
    torch.set_num_threads(threads or os.cpu_count() or 1)
    torch.manual_seed(0)
    sizes = Sizes(8, 64, 64, 3, 128, 4, 64, rounds) if quick else Sizes(rounds=rounds)
    where = f"{torch.get_num_threads()} CPU threads"
    console = Console()
    rows: list[Row] = []
    with console.status("measuring") as status:
        parts = {
            "operator": lambda: _bench.operator_rows(sizes, where, status.update),
            "step": lambda: _bench.step_rows(sizes, where, status.update),
            "memory": lambda: _bench.memory_rows(sizes, where, status.update),
            "decode": lambda: [_bench.decode_row(sizes, where, status.update)],
        }
        for name, measure in parts.items():
            if not only or name in only:
                rows += measure()
    rows += _bench.gpu_rows()
    console.print(_table(rows))
    console.print(_details(rows))
    if out is not None:
        _write(out, rows, sizes)
    return 0


def _table(rows: list[Row]) -> Table:
    table = Table("what", "where", "must", "aim", "measured")
    for row in rows:
        measured = NOT_MEASURED if row.ratio is None else f"{row.ratio:.2f}" + "x" * row.must.endswith("x")
        table.add_row(row.what, row.where, row.must, row.aim, measured)
    return table


def _details(rows: list[Row]) -> str:
    lines = []
    for row in rows:
        lines += [
            f"  {name}: {value:.3g}" if isinstance(value, float) else value for name, value in row.details.items()
        ]
    return "\n".join(lines)


def _write(path: Path, rows: list[Row], sizes: Sizes) -> None:
    record = {
        "date": time.strftime("%Y-%m-%d"),
        "machine": {"processor": _processor(), "cores": os.cpu_count(), "threads": torch.get_num_threads()},
        "versions": {"torch": torch.__version__, "python": platform.python_version()},
        "sizes": dataclasses.asdict(sizes),
        "rows": [dataclasses.asdict(row) | {"ratio": NOT_MEASURED if row.ratio is None else row.ratio} for row in rows],
    }
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(json.dumps(record, indent=2) + "\n")
    temporary.replace(path)


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
