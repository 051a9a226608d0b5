"""A recipe: one run as a Python file."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from attnres.errors import UsageError
from attnres.train.config import RunConfig
from attnres.train.jsonconfig import config_from_json, config_to_json


def load_recipe(path: str | Path) -> RunConfig:
    """Load the module-level `config` of a Python file.

    The file may import its neighbours, as `from base import config` or, with its folder's name, as
    `from recipes.base import config`, and derive from one with `dataclasses.replace`. It is run as the program it is:
    load only recipes that you would run.

    Raises:
        UsageError: it defines no RunConfig of that name. What the file raises is raised.
    """
    path = Path(path).resolve()
    spec = importlib.util.spec_from_file_location(f"attnres_recipe_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path}: a recipe must be a Python file (.py)")
    module = importlib.util.module_from_spec(spec)
    with _importable(path.parent):
        sys.modules[spec.name] = module  # where dataclasses and pickle look for it while it runs
        try:
            spec.loader.exec_module(module)
        except UsageError as error:
            raise UsageError(f"{path}: {error}") from error
    config = getattr(module, "config", None)
    if not isinstance(config, RunConfig):
        raise UsageError(f"{path}: a recipe must define config = RunConfig(...) (from attnres.train)")
    try:
        return config_from_json(config_to_json(config))  # a run folder keeps it as JSON: it must say the same there
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error


@contextmanager
def _importable(folder: Path) -> Iterator[None]:
    """Let imports find the folder and its neighbours; forget them afterwards, as another folder may use their names.

    What is found without that stays: a part of a package that was here before, and an environment inside the folder.
    """
    added = [str(folder), str(folder.parent)]
    before = set(sys.modules)
    sys.path[:0] = added
    try:
        yield
    finally:
        for entry in added:
            sys.path.remove(entry)
        below = [place for place in map(Path.absolute, map(Path, sys.path)) if folder in place.parents]

        def is_neighbour(place: Path) -> bool:
            return place.is_relative_to(folder) and not any(place.is_relative_to(entry) for entry in below)

        # All found before any is forgotten: a folder's place is looked up through its parent's.
        new = [name for name in sys.modules if name.partition(".")[0] not in before]
        for name in [name for name in new if any(map(is_neighbour, _places(name)))]:
            del sys.modules[name]


def _places(name: str) -> list[Path]:
    """Where a module was loaded from; a folder without __init__.py has no file but a path."""
    module = sys.modules[name]
    file = getattr(module, "__file__", None)
    return [Path(place) for place in ([file] if file else getattr(module, "__path__", []))]
