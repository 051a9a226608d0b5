"""Names of a package that are imported on first use: torch takes seconds, for which `--help` should not wait."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from typing import Any


def on_first_use(package: str, **modules: Sequence[str]) -> Callable[[str], Any]:
    """Make the `__getattr__` of a package.

    Args:
        package: its `__name__`.
        modules: each of its modules from which names come, with those names.
    """
    homes = {name: module for module, names in modules.items() for name in names}

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"{package}.{homes[name]}"), name)
        setattr(sys.modules[package], name, value)
        return value

    return get
