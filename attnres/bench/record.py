"""What was measured, as a table, as lines and as a file."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from attnres.bench import readers
from attnres.bench.measure import NOT_MEASURED, RatioRow, Setting
from attnres.files import write_text
from attnres.ops.cpu import instruction_set
from attnres.texttable import TextTable


def ratio_table(rows: Sequence[RatioRow]) -> TextTable:
    """The table of the ratios; `where` is the same for all rows of a device, so that the title has it."""
    cells = []
    for row in rows:
        spread = "-" if row.spread is None else "..".join(map(row.written, row.spread))
        bandwidth = "-" if row.bandwidth is None else row.written(row.bandwidth)
        cells.append((row.what, row.measured, spread, bandwidth, row.must))
    where = ", ".join(dict.fromkeys(row.where for row in rows))
    return TextTable(f"ratios on {where}", ("what", "measured", "spread", "bandwidth", "must"), tuple(cells))


def details(rows: Sequence[RatioRow]) -> str:
    """What each ratio was made of, one number per line."""
    lines = []
    for row in rows:
        if row.details:
            lines.append(row.what)
        for name, value in row.details.items():
            lines.append(f"  {name}: {value:.3g}" if isinstance(value, float) else f"  {name}: {value}")
    return "\n".join(lines)


def write_record(path: Path, rows: Sequence[RatioRow], setting: Setting) -> None:
    """Write everything measured, and on what, as JSON."""
    record = {
        "date": time.strftime("%Y-%m-%d"),
        "machine": {
            "processor": _processor(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "instruction set": instruction_set(),
            "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
        },
        "versions": {"torch": torch.__version__, "python": platform.python_version(), **readers.versions()},
        "rounds": setting.rounds,
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
