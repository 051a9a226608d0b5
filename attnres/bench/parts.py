"""The parts of `attnres bench` by name, and those that a plain one measures."""

from __future__ import annotations

import importlib
from collections.abc import Collection, Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING, Literal, get_args

from attnres.errors import UsageError, install_command

if TYPE_CHECKING:
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

NEEDS: dict[Part, tuple[str, str]] = {
    "hf": ("transformers", "hf"),
    "kernels": ("triton", "gpu"),
    "traffic": ("triton", "gpu"),
    "look": ("transformers", "hf"),
}
"""The module without which a part cannot run, and the extra that brings it."""


def check_needs(parts: Collection[Part]) -> None:
    """Raise UsageError where a part needs what is not installed."""
    for part, (module, extra) in NEEDS.items():
        if part in parts and find_spec(module) is None:
            raise UsageError(f"bench {part} needs {module}: {install_command(extra)}")


def measure_parts(parts: Collection[Part], setting: Setting) -> Iterator[tuple[Part, Row]]:
    """Each row with its part, as soon as it is measured."""
    for part in get_args(Part):
        if part in parts:
            for row in importlib.import_module(f"attnres.bench.{part}").measure(setting):
                yield part, row
