"""Checks that run before any work starts."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from attnres.errors import UsageError, install_command
from attnres.files import LOCK, locked, remove_partial


def check_new_file(flag: str, path: Path | None) -> None:
    """Raise UsageError if no new file can be written there: what it would replace may have taken hours."""
    if path is not None and (path.exists() or not os.access(path.absolute().parent, os.W_OK)):
        raise UsageError(f"{flag} {path}: no new file can be written there; give another name")


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Hold the folder of `--out`, so that no second command trains the runs that this one has planned there.

    A command that was killed holds nothing, and what it has left half-written of records and figures is removed.

    Raises:
        UsageError: another command holds it, or it is the folder of a run.
    """

    def refuse() -> None:
        raise UsageError(f"--out {folder}: another command is at work there; wait for it or give another --out")

    if (folder / "config.json").is_file():
        raise UsageError(f"--out {folder} is the folder of a run, whose files must stay; choose another")
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / LOCK, taken=refuse):
        for place in (folder, folder / "figures"):
            remove_partial(place)
        yield


def check_installed(command: str, extra: str, *modules: str) -> None:
    """Raise UsageError where one of an extra's modules is not installed; before the rest of the command is imported."""
    if missing := [name for name in modules if importlib.util.find_spec(name) is None]:
        raise UsageError(f"{command} needs {', '.join(missing)}, not installed here: {install_command(extra)}")


def named_recipe(arguments: Sequence[str]) -> str | None:
    """The value of the last --recipe, which must be known before the other options can have their defaults."""
    named = None
    for position, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if name == "--recipe":
            named = value if equals else next(iter(arguments[position + 1 :]), None)
    return named
