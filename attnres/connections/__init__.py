"""Residual connections: the rules, one file each in rules/, and what they share."""

from __future__ import annotations

import pkgutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnres.connections import rules
from attnres.connections.grammar import Option, parse_connection
from attnres.lazy import on_first_use

if TYPE_CHECKING:
    from attnres.connections.base import Connection, Normed, Sublayer, Values, Weights, check_sublayers, output_of
    from attnres.connections.groups import param_groups
    from attnres.connections.matrix import Unrolled, mixing_matrix
    from attnres.connections.options import option_defaults
    from attnres.connections.reads import mean_read
    from attnres.connections.registry import connection_class, file_digest, make_connection

__all__ = [
    "Connection",
    "Normed",
    "Option",
    "Sublayer",
    "Unrolled",
    "Values",
    "Weights",
    "canonical_connection",
    "check_sublayers",
    "connection_class",
    "connection_names",
    "file_digest",
    "from_anywhere",
    "make_connection",
    "mean_read",
    "mixing_matrix",
    "option_defaults",
    "output_of",
    "param_groups",
    "parse_connection",
    "saved_connection",
]

__getattr__ = on_first_use(__name__)


def connection_names() -> list[str]:
    """The names of all connections, one for each file of rules/."""
    return sorted(file.name.replace("_", "-") for file in pkgutil.iter_modules(rules.__path__))


def from_anywhere(connection: str) -> str:
    """Write a connection FILE.py:CLASS with the file's whole path, which holds in every folder; others as given."""
    file, colon, _ = parse_connection(connection)[0].rpartition(":")
    return f"{Path(file).resolve()}{connection.strip()[len(file) :]}" if colon else connection


def saved_connection(connection: str, sublayers: int) -> str:
    """Write a connection as files have it: with the options whose defaults follow from the number of sublayers.

    >>> saved_connection("block", sublayers=48)
    'block:block_size=6'
    """
    from attnres.connections.registry import saved

    return saved(connection, sublayers)


def canonical_connection(connection: str, sublayers: int | None = None, **options: Any) -> str:
    """Write a connection in its canonical form: options in their own order, without those at their default.

    >>> canonical_connection("block: heads = 2, block_size = 4")
    'block:block_size=4,heads=2'
    >>> canonical_connection("block: heads = 2, block_size = 4", sublayers=32)
    'block:heads=2'

    Args:
        connection: as for `make_connection`.
        sublayers: their number, where it is known: some options' defaults follow from it.
        options: as for `make_connection`.

    Raises:
        UsageError: an unknown name or option, or one that is given twice.
    """
    name, written = parse_connection(connection)
    if not (written or options) and name in connection_names():
        return name  # without torch
    from attnres.connections.registry import canonical

    return canonical(connection, sublayers, options)
