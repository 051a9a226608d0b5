"""Import names of a package on first use: importing torch takes seconds, and `--help` should not wait for it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from typing import Any


def on_first_use(package: str, **modules: Sequence[str]) -> Callable[[str], Any]:
    """Make the `__getattr__` of a package that imports its names on first use.

    Args:
        package: The package's `__name__`.
        modules: For each module of the package, the names that come from it.
    """
    homes = {name: module for module, names in modules.items() for name in names}

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"{package}.{homes[name]}"), name)
        setattr(sys.modules[package], name, value)
        return value

    return get
