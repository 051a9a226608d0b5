"""The parts of `attnres bench` by name, and those that a plain one measures."""

from __future__ import annotations

import importlib
from collections.abc import Collection
from typing import Literal, get_args

from attnres.bench.measure import Row, Setting

Part = Literal[
    "operator",
    "decode",
    "step",
    "memory",
    "gpu",
    "curves",
    "parallel",
    "hf",
    "kernels",
    "traffic",
    "imports",
    "targets",
    "look",
    "lab",
]
"""The file of this folder that defines `measure(setting)`; they are measured in this order."""

BY_DEFAULT: tuple[Part, ...] = ("operator", "decode", "step", "memory", "gpu")


def measure_parts(parts: Collection[Part], setting: Setting) -> dict[Part, list[Row]]:
    return {
        part: importlib.import_module(f"attnres.bench.{part}").measure(setting)
        for part in get_args(Part)
        if part in parts
    }
