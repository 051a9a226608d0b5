"""Connections from files: those of this package and custom ones."""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import NamedTuple
from zlib import crc32

from attnres.connections.base import Connection
from attnres.errors import UsageError, first_line


def class_of_file(file: str, name: str) -> type[Connection]:
    """Find a class in a Python file, which is run as the program it is.

    Raises:
        UsageError: there is no such file, or it defines no connection of that name. What the file raises is raised.
    """
    path = Path(file).resolve()
    if not path.is_file():
        raise UsageError(f"{file}: no such file, seen from {Path.cwd()}; write FILE.py:CLASS")
    classes = {cls.__name__: cls for cls in classes_of(_module(path))}
    if name not in classes:
        defined = f"it defines {', '.join(classes)}" if classes else "it defines none"
        raise UsageError(f"{file}: no subclass of Connection is called {name!r}; {defined}")
    return classes[name]


def classes_of(module: ModuleType) -> list[type[Connection]]:
    """List the connections that a module defines itself."""
    return [
        value
        for value in vars(module).values()
        if inspect.isclass(value) and issubclass(value, Connection) and value.__module__ == module.__name__
    ]


def told(error: BaseException) -> str:
    """Describe in one line what somebody's code raised."""
    return f"{type(error).__name__}: {first_line(error)}"


@contextmanager
def making_errors(connection: str) -> Iterator[None]:
    """Let a UsageError of a connection's class name the connection, as it was written: `heads` is the model's, too."""
    try:
        yield
    except UsageError as error:
        raise UsageError(f"connection {connection}: {error}") from error


def is_loaded(file: str) -> bool:
    """Whether this process has run the file already."""
    return Path(file).resolve() in _loaded


def digest(file: str) -> str:
    """Hash the file: as this process has run it, or, where it has not, as it is."""
    path = Path(file).resolve()
    return _loaded[path].digest if path in _loaded else _hash(path.read_bytes())


class _Loaded(NamedTuple):
    module: ModuleType
    digest: str
    """Of the text that was run."""


_loaded: dict[Path, _Loaded] = {}
"""Files are imported once, so that their classes are the same for whoever asks."""


def _hash(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()


def _module(path: Path) -> ModuleType:
    if path not in _loaded:
        name = f"attnres_connection_{path.stem}_{crc32(bytes(path)):08x}"
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None  # its name ends in .py, as the grammar asks
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        try:
            text = path.read_bytes()  # not by the loader, which may take bytecode of an edit of the same second
            exec(compile(text, path, "exec", dont_inherit=True), vars(module))
        except BaseException:
            del sys.modules[name]
            raise
        _loaded[path] = _Loaded(module, _hash(text))
    return _loaded[path].module
