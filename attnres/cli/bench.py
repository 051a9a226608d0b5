"""Measure depth attention: operator, training step, memory and decoding, as ratios in one run.

    attnres bench
    attnres bench --threads 1 --rounds 31 --out bench.json
    attnres bench operator step
    attnres bench curves --out curves.json --figures docs/figures

Checks every contender's output and gradients against float64 first; one that is wrong gets no speed. Other packages
take part where they are installed: pip install -e '.[bench]'. Run it on a machine that does nothing else: the
contenders take turns, but a busy machine still blurs ratios this close to one.

The parts `operator`, `step`, `memory`, `decode` and `gpu` are what a plain `attnres bench` measures. `curves` (how the
cost grows with sources, tokens and channels), `parallel` (a pipeline of four processes: bytes sent with the
cross-stage cache and without, and the time of a step), `hf` (a model of transformers over its plain twin, and its
conversion), `kernels` (the Triton kernels compiled for an H100, and what they spill) and `imports` (what importing
connections and operators adds to importing torch) run when they are named.
"""

from __future__ import annotations

import importlib
import json
import os
import platform
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal, get_args

import torch
import tyro
from rich.console import Console
from rich.table import Table

from attnres.bench import readers
from attnres.bench.measure import NOT_MEASURED, Row, Setting
from attnres.errors import UsageError
from attnres.files import write_text

Part = Literal["operator", "decode", "step", "memory", "gpu", "curves", "parallel", "hf", "kernels", "imports"]
"""The file of `attnres/bench/` that defines `measure(setting)`."""

BY_NAME_ONLY = ("curves", "parallel", "hf", "kernels", "imports")


def command(
    parts: Annotated[tuple[Part, ...], tyro.conf.Positional] = (),
    only: tuple[Part, ...] = (),
    threads: int | None = None,
    rounds: int = 15,
    quick: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
    out: Path | None = None,
    figures: Path | None = None,
) -> int:
    """Bench.

    Args:
        parts: Measure only these parts.
        only: The same, as an option.
        threads: Threads of torch; as many as the machine has cores when not given.
        rounds: How often each contender is measured; the table shows medians.
        quick: Tiny sizes, to see that everything runs. Its numbers mean nothing.
        out: Also write everything measured to this JSON file.
        figures: Draw the curves into this folder. Takes the part `curves`.
    """
    if rounds < 1 or (threads is not None and threads < 1):
        raise UsageError("rounds and threads must be at least 1")
    chosen = {*parts, *only} or {part for part in get_args(Part) if part not in BY_NAME_ONLY}
    if figures is not None and "curves" not in chosen:
        raise UsageError("--figures draws the curves: attnres bench curves --figures FOLDER")
    for path in (out, figures):
        if path is not None and not path.absolute().parent.is_dir():
            raise UsageError(f"there is no folder {path.absolute().parent} to write to")
    torch.set_num_threads(threads or os.cpu_count() or 1)
    torch.manual_seed(0)
    console = Console()
    rows: dict[Part, list[Row]] = {}
    with console.status("measuring") as status:
        setting = Setting(rounds, quick, status.update)
        for part in get_args(Part):
            if part in chosen:
                rows[part] = importlib.import_module(f"attnres.bench.{part}").measure(setting)
    measured = [row for part in rows.values() for row in part]
    console.print(_table(measured))
    console.print(_details(measured))
    if out is not None:
        _write(out, measured, setting)
    if figures is not None:
        from attnres.report.curves import draw_curves

        draw_curves([asdict(row) for row in rows["curves"]], figures)
    return 0


def _table(rows: list[Row]) -> Table:
    table = Table("what", "where", "must", "aim", "measured")
    for row in rows:
        table.add_row(row.what, row.where, row.must, row.aim, row.measured)
    return table


def _details(rows: list[Row]) -> str:
    lines = []
    for row in rows:
        if row.details:
            lines.append(row.what)
        for name, value in row.details.items():
            lines.append(f"  {name}: {value:.3g}" if isinstance(value, float) else f"  {name}: {value}")
    return "\n".join(lines)


def _write(path: Path, rows: list[Row], setting: Setting) -> None:
    record = {
        "date": time.strftime("%Y-%m-%d"),
        "machine": {
            "processor": _processor(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
        },
        "versions": {"torch": torch.__version__, "python": platform.python_version(), **readers.versions()},
        "rounds": setting.rounds,
        "quick": setting.quick,
        "rows": [asdict(row) | {"ratio": NOT_MEASURED if row.ratio is None else row.ratio} for row in rows],
    }
    write_text(path, json.dumps(record, indent=2) + "\n")


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
