"""What a connection's state says of the connection, so that no other one loads it without a word."""

from __future__ import annotations

import dataclasses
import inspect
import logging
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from attnres.connections._grammar import Option
from attnres.errors import UsageError

log = logging.getLogger("attnres")

if TYPE_CHECKING:
    from attnres.connections._connection import Connection

SIGNATURE = "made_as"
"""The name of the tensor by which a state says whose it is, where `sign_by_tensor` asked for one."""


def option_defaults(cls: type[Connection]) -> dict[str, Option]:
    """The names of a connection's options, in the order in which they are written, and their defaults."""
    defaults: dict[str, Option] = {}
    for name, parameter in list(inspect.signature(cls.__init__).parameters.items())[1:]:
        if parameter.kind is inspect.Parameter.VAR_KEYWORD and cls.shared_options:
            shared = dataclasses.fields(cls.shared_options)
            defaults |= {field.name: cast(Option, field.default) for field in shared if field.name not in defaults}
        elif name not in ("dim", "sites") and parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            defaults[name] = parameter.default
    return defaults


def checked_option(cls: type[Connection], option: str, default: object, value: Any) -> Any:
    """The value of an option as the class has it: a whole number as a float where the default is one.

    Raises:
        UsageError: its default is a bool and it is none, or a float and it is no finite number; a connection of this
            folder takes positive ones alone.
    """
    if isinstance(default, bool) and not isinstance(value, bool):
        raise UsageError(f"{option} must be True or False, not {value!r}")
    if not isinstance(default, float):
        return value
    # A class of one's own knows its own range.
    lowest, kind = (0, "positive") if cls.__module__.startswith(f"{__package__}.") else (-math.inf, "finite")
    if not (isinstance(value, int | float) and not isinstance(value, bool) and lowest < value < math.inf):
        raise UsageError(f"{option} must be a {kind} number, not {value!r}")
    return float(value)


def options_given(cls: type[Connection], args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """What `cls(*args, **kwargs)` is made with beside dim and sites, of those whose text says all of them.

    Raises:
        UsageError: a value that `checked_option` refuses.
    """
    try:
        bound = inspect.signature(cls.__init__).bind(None, *args, **kwargs)
    except TypeError:  # __init__ will say so; or it is a copy, which has the options of the first
        return {}
    bound.apply_defaults()
    defaults, options = option_defaults(cls), {}
    for name, value in list(bound.arguments.items())[1:]:
        if bound.signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD:
            shared = dataclasses.fields(cls.shared_options) if cls.shared_options else ()
            options = {field.name: field.default for field in shared} | options | value
        else:
            options[name] = value
    return {
        name: checked_option(cls, name, defaults.get(name), value)
        for name, value in options.items()
        if name not in ("dim", "sites") and isinstance(value, bool | int | float | str | None)
    }


def _signature(connection: Connection) -> str:
    return f"{type(connection).__name__}({connection.extra_repr()})"


def sign(connection: Connection, state: Any, prefix: str, metadata: dict[str, Any]) -> None:
    """Say whose state it is: a Full has the parameters of a Block, and means something else by them."""
    metadata["connection"] = _signature(connection)
    if hasattr(connection, SIGNATURE):  # written anew: `to_empty` and averages of weights change what a model has
        state[prefix + SIGNATURE] = _as_tensor(connection).to(connection.get_buffer(SIGNATURE))


def _as_tensor(connection: Connection) -> Tensor:
    """The signature's bytes, as floats: in a mean of several states whole numbers of 8 bits would overflow."""
    return torch.tensor(list(_signature(connection).encode()), dtype=torch.float32, device="cpu")


def sign_by_tensor(connection: Connection) -> None:
    """Give its state a tensor, too, that says in bytes whose it is.

    Safetensors, and with them PEFT's adapters, keep tensors alone, and not what `sign` wrote.
    """
    connection.register_buffer(SIGNATURE, _as_tensor(connection))


def _signature_in(state: Mapping[str, Any], prefix: str, metadata: Mapping[str, Any]) -> str | None:
    """Whose state it says that it is; None where it says nothing, or is without numbers."""
    tensor = state.get(prefix + SIGNATURE)
    if tensor is None or tensor.is_meta:
        return metadata.get("connection")
    return bytes(tensor.double().round().to(torch.uint8).tolist()).decode(errors="replace")


def refuse_other(connection: Connection, state: Any, prefix: str, metadata: dict[str, Any], *_: Any) -> None:
    """Refuse what would be loaded without a word; where names differ, strict loading says so.

    A state from before an option was signed says nothing of it, and one from before there was a tensor loads without.
    """
    here = _signature(connection)
    (kind, own), (other, theirs) = _parts(here), _parts(_signature_in(state, prefix, metadata) or here)
    by_tensor = state.pop(prefix + SIGNATURE, None)
    names = {prefix + name for name in connection.state_dict(keep_vars=True)} - {prefix + SIGNATURE}
    others = names != {key for key in state if key.startswith(prefix)}
    signed = hasattr(connection, SIGNATURE)
    if signed:
        own_tensor = _as_tensor(connection).to(connection.get_buffer(SIGNATURE).dtype)
        state[prefix + SIGNATURE] = own_tensor if by_tensor is None else own_tensor.to(by_tensor.device)
    if others and by_tensor is None:
        return
    if signed and by_tensor is None and "connection" not in metadata:
        log.warning(
            "the state does not say of which connection it is, and is taken for that of %s; the config.json beside a "
            "checkpoint says it",
            here,
        )
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
