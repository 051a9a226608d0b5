"""How the cost of reading depth grows with the number of sources, with tokens and with channels."""

from __future__ import annotations

from dataclasses import replace

from attnres.bench import operator, readers
from attnres.bench.measure import Row, Setting, copy_bandwidth

BASE = operator.Shape(batch=2, time=256, dim=512, sources=9)

AXES: dict[str, tuple[int, ...]] = {
    "sources": (2, 4, 8, 16, 32, 64, 128),
    "time": (16, 64, 256, 1024, 4096),
    "dim": (64, 128, 512, 2048, 7186),
}
QUICK: dict[str, tuple[int, ...]] = {"sources": (2, 4), "time": (4, 8), "dim": (8, 16)}

CONTENDERS = ("attnres", "stacked", "compiled reference")

MOST_COMPILED = 32
"""Sources: the compiled form is one kernel with a pointer for each, and 32 take 15 s of CPU time to compile."""


def measure(setting: Setting) -> list[Row]:
    base = replace(BASE, time=8, dim=16) if setting.quick else BASE
    bandwidth = copy_bandwidth()
    rows = []
    for axis, values in (QUICK if setting.quick else AXES).items():
        for value in values:
            shape = replace(base, **{axis: value})
            contenders = readers.plain()
            chosen = [name for name in CONTENDERS if shape.sources <= MOST_COMPILED or name != "compiled reference"]
            result = operator.compare(shape, {name: contenders[name] for name in chosen}, setting, {})
            details = result.details | {
                "axis": axis,
                "elsewhere": str(base),
                axis: float(value),
                "bytes that must move at the copy bandwidth, ms": 1e3 * operator.bytes_to_move(shape) / bandwidth,
            }
            what = f"operator forward+backward, {shape}: over stacked eager PyTorch"
            rows.append(Row(what, setting.where, "-", "-", result.over("stacked"), details))
    return rows
