"""What a connection's state says of the connection, so that no other one loads it without a word."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import nn

from attnres.errors import UsageError

if TYPE_CHECKING:
    from attnres.connections._connection import Connection


def options_given(cls: type[Connection], args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """What `cls(*args, **kwargs)` is made with beside dim and sites, of those whose text says all of them."""
    try:
        bound = inspect.signature(cls.__init__).bind(None, *args, **kwargs)
    except TypeError:  # __init__ will say so; or it is a copy, which has the options of the first
        return {}
    bound.apply_defaults()
    options: dict[str, Any] = {}
    for name, value in list(bound.arguments.items())[1:]:
        if bound.signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD:
            shared = dataclasses.fields(cls.shared_options) if cls.shared_options else ()
            options = {field.name: field.default for field in shared} | options | value
        else:
            options[name] = value
    return {
        name: value
        for name, value in options.items()
        if name not in ("dim", "sites") and isinstance(value, bool | int | float | str | None)
    }


def _signature(connection: Connection) -> str:
    return f"{type(connection).__name__}({connection.extra_repr()})"


def sign(connection: Connection, state: Any, prefix: str, metadata: dict[str, Any]) -> None:
    """Say whose state it is: a Full has the parameters of a Block, and means something else by them."""
    metadata["connection"] = _signature(connection)


def leave_out_unused(connection: Connection, state: Any, prefix: str, *_: Any) -> None:
    """Drop what older states have for sites without a parameter, as a hook: no loss ever reached it."""
    for name, entries in connection.named_children():
        if isinstance(entries, nn.ParameterList):
            for site, parameter in enumerate(entries):
                if parameter is None:
                    state.pop(f"{prefix}{name}.{site}", None)


def refuse_other(connection: Connection, state: Any, prefix: str, metadata: dict[str, Any], *_: Any) -> None:
    """Refuse what would be loaded without a word; where names differ, strict loading says so.

    A state from before an option was signed says nothing of it.
    """
    here = _signature(connection)
    (kind, own), (other, theirs) = _parts(here), _parts(metadata.get("connection", here))
    names = {prefix + name for name, _ in connection.named_parameters()}
    if names != {key for key in state if key.startswith(prefix)}:
        return
    differing = [name for name in theirs if own.get(name, theirs[name]) != theirs[name]]
    if kind != other or differing:
        said = [other, kind]
        if kind == other:
            said = [", ".join(f"{name}={of[name]}" for name in differing) for of in (theirs, own)]
        raise UsageError("the state is that of {}, and this connection is {}; make the same one".format(*said))


def _parts(signature: str) -> tuple[str, dict[str, str]]:
    """The class of a connection's signature, and its options."""
    kind, _, options = signature.rstrip(")").partition("(")
    return kind, {name: value for name, _, value in (option.partition("=") for option in options.split(", "))}
