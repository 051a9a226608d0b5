"""Make connections from text: their classes, their options, files with custom ones."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from attnres.connections import connection_names
from attnres.connections.base import Connection
from attnres.connections.files import class_of_file, classes_of, digest, making_errors
from attnres.connections.grammar import parse_connection, print_connection
from attnres.connections.options import checked_option, option_defaults
from attnres.errors import UsageError


def connection_class(connection: str) -> type[Connection]:
    """Find the class of a connection, written with or without options: one of rules/, or FILE.py:CLASS.

    Raises:
        UsageError: any other name, with those that are known, or a file that cannot be imported.
    """
    name, _ = parse_connection(connection)
    file, colon, class_name = name.rpartition(":")
    if colon:
        return class_of_file(file, class_name)
    if name.endswith(".py"):
        raise UsageError(f"{name}: name the connection's class too, as FILE.py:CLASS")
    if name not in connection_names():
        known = connection_names()
        raise UsageError(f"unknown connection {name!r}; choose one of: {', '.join(known)}")
    file_name = name.replace("-", "_")
    module = importlib.import_module(f"{__package__}.rules.{file_name}")
    classes = classes_of(module)
    if len(classes) != 1:
        raise UsageError(f"{module.__file__} must define one subclass of Connection, not {len(classes)}")
    return classes[0]


def file_digest(connection: str) -> str | None:
    """Hash the file of a connection that is written FILE.py:CLASS; None for one of this folder.

    What counts is the text that this process has run, where it has: an edit meanwhile changes nothing that it makes.
    """
    file, colon, _ = parse_connection(connection)[0].rpartition(":")
    return digest(file) if colon else None


def make_connection(connection: str, dim: int, sublayers: int, **options: Any) -> Connection:
    """Make a connection by its name.

    >>> make_connection("block:block_size=8", dim=64, sublayers=32, heads=2)
    Block(dim=64, sublayers=32, block_size=8, ...)

    Args:
        connection: NAME or FILE.py:CLASS, optionally followed by :OPTION=VALUE,OPTION=VALUE.
        dim: width of the stream.
        sublayers: their number; a transformer layer has two.
        options: options as keyword arguments; their names and defaults are those of the class.

    Returns:
        The connection with its initial parameters, in torch's default dtype.

    Raises:
        UsageError: the name or an option is unknown, an option is given twice, or a value is invalid.
    """
    _, cls, options = _read(connection, options)
    with making_errors(connection):
        return cls(dim, sublayers, **options)


def canonical(connection: str, sublayers: int | None, options: Mapping[str, Any]) -> str:
    """What `canonical_connection` returns, for any connection."""
    name, cls, options = _read(connection, options)
    if sublayers is not None:
        options = _without_derived(cls, options, sublayers)
    return _written(name, cls, options)


def saved(connection: str, sublayers: int) -> str:
    """What `saved_connection` returns."""
    name, cls, options = _read(connection, {})
    return _written(name, cls, cls.saved_options(options, sublayers))


def _without_derived(cls: type[Connection], options: dict[str, Any], sublayers: int) -> dict[str, Any]:
    """The options without those that follow from the number of sublayers in any case."""
    with_derived = cls.saved_options(options, sublayers)
    derived = cls.saved_options({}, sublayers)
    return {name: value for name, value in with_derived.items() if name not in derived or value != derived[name]}


def _written(name: str, cls: type[Connection], options: Mapping[str, Any]) -> str:
    defaults = option_defaults(cls)
    # By type too: True == 1, and a wrong value must not vanish.
    told = {option: (type(value), value) for option, value in options.items()}
    return print_connection(
        name,
        {
            option: options[option]
            for option, default in defaults.items()
            if option in told and told[option] != (type(default), default)
        },
    )


def _read(connection: str, options: Mapping[str, Any]) -> tuple[str, type[Connection], dict[str, Any]]:
    """The name, the class and the options, those of the text and the others, with numbers as the class has them."""
    name, written = parse_connection(connection)
    if twice := written.keys() & options.keys():
        raise UsageError(f"connection {connection!r}: {twice.pop()} is given twice; give it once")
    cls = connection_class(connection)
    defaults = option_defaults(cls)
    checked = {}
    for option, value in {**written, **options}.items():
        if option not in defaults:
            takes = f"it takes {', '.join(defaults)}" if defaults else "it takes no options"
            raise UsageError(f"connection {name!r} has no option {option!r}; {takes}")
        with making_errors(connection):
            checked[option] = checked_option(cls, option, defaults[option], value)
    return name, cls, checked
