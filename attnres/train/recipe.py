"""A recipe: one run as a Python file."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from attnres.errors import UsageError
from attnres.train.runconfig import RunConfig


def load_recipe(path: str | Path) -> RunConfig:
    """Load the module-level `config` of a Python file.

    The file may import its neighbours, as `from base import config` or, with its folder's name, as
    `from recipes.base import config`, and derive from one with `dataclasses.replace`. It is run as the program it is:
    load only recipes that you would run.

    Raises:
        UsageError: it defines no RunConfig of that name. What the file raises is raised.
    """
    path = Path(path).resolve()
    sys.path[:0] = added = [str(path.parent), str(path.parent.parent)]
    try:
        config = runpy.run_path(str(path)).get("config")
    finally:
        for entry in added:
            sys.path.remove(entry)
    if not isinstance(config, RunConfig):
        raise UsageError(f"{path}: a recipe must define config = RunConfig(...) (from attnres.train)")
    return config
