"""Import names of a package on first use: importing torch takes seconds, and `--help` should not wait for it."""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def on_first_use(package: str) -> Callable[[str], Any]:
    """Make the `__getattr__` of a package, which imports on first use what its file imports `if TYPE_CHECKING`."""
    module = sys.modules[package]
    tree = ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8"))
    blocks = [part.body for part in tree.body if isinstance(part, ast.If) and ast.unparse(part.test) == "TYPE_CHECKING"]
    homes = {
        alias.asname or alias.name: (line.module, alias.name)
        for block in blocks
        for line in block
        if isinstance(line, ast.ImportFrom)
        for alias in line.names
    }

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home, known_there = homes[name]
        value = getattr(importlib.import_module(str(home)), known_there)
        setattr(module, name, value)
        return value

    return get
