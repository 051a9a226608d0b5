"""Residual connections, one per file. The file's name is the connection's name, with `-` for `_`.

To add a connection, add one file here that defines one subclass of `Connection`; nothing else changes.
"""

from __future__ import annotations

import importlib
import inspect
import math
import pkgutil
from typing import Any

from attnres.connections._connection import Connection, Sublayer, Values, Weights, output_of
from attnres.connections._groups import param_groups
from attnres.connections._mixing import Unrolled, mixing_matrix
from attnres.connections._reads import mean_read
from attnres.errors import UsageError

__all__ = [
    "Connection",
    "Sublayer",
    "Unrolled",
    "Values",
    "Weights",
    "connection_class",
    "connection_names",
    "make_connection",
    "mean_read",
    "mixing_matrix",
    "output_of",
    "param_groups",
]


def connection_names() -> list[str]:
    """The names of all connections: one for each file of this folder that does not start with an underscore."""
    files = (module.name for module in pkgutil.iter_modules(__path__))
    return sorted(file.replace("_", "-") for file in files if not file.startswith("_"))


def connection_class(name: str) -> type[Connection]:
    """The connection of that name. Raises UsageError with the known names for any other."""
    if name not in connection_names():
        raise UsageError(f"unknown connection {name!r}; choose one of: {', '.join(connection_names())}")
    try:
        module = importlib.import_module(f"{__name__}.{name.replace('-', '_')}")
    except SyntaxError as error:
        raise UsageError(f"{error.filename}, line {error.lineno}: {error.msg}; mend the connection's file") from error
    classes = [
        value
        for value in vars(module).values()
        if inspect.isclass(value) and issubclass(value, Connection) and value.__module__ == module.__name__
    ]
    if len(classes) != 1:
        raise UsageError(f"{module.__file__} must define one subclass of Connection, not {len(classes)}")
    return classes[0]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def make_connection(name: str, dim: int, sites: int, **options: Any) -> Connection:
    """A connection by name, for `sites` sublayers of width `dim`, with the options of its class.

    >>> make_connection("block", dim=64, sites=32, block_size=4)
    Block(dim=64, sites=32, block_size=4, ...)

    Raises UsageError on an unknown name or option, or a value that the connection does not take.
    """
    cls = connection_class(name)
    known = {k: p.default for k, p in inspect.signature(cls).parameters.items() if k not in ("dim", "sites")}
    for option, value in options.items():
        if option not in known:
            takes = f"it takes {', '.join(known)}" if known else "it takes no options"
            raise UsageError(f"connection {name!r} has no option {option!r}; {takes}")
        if isinstance(known[option], bool) and not isinstance(value, bool):
            raise UsageError(f"{option} must be True or False, not {value!r}")
        if isinstance(known[option], float) and not (_is_number(value) and 0 < value < math.inf):
            raise UsageError(f"{option} must be a positive number, not {value!r}")
    return cls(dim, sites, **options)
