"""The options of a connection's class: its `__init__` says which it has."""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

from attnres.connections.grammar import Option
from attnres.errors import UsageError


def option_defaults(cls: type[Any]) -> dict[str, Option]:
    """The names of a connection's options, in the order in which they are written, and their defaults."""
    defaults: dict[str, Option] = {}
    for name, parameter in list(inspect.signature(cls.__init__).parameters.items())[1:]:
        if parameter.kind is inspect.Parameter.VAR_KEYWORD and cls.shared_options:
            shared = dataclasses.fields(cls.shared_options)
            defaults |= {field.name: cast(Option, field.default) for field in shared if field.name not in defaults}
        elif name not in ("dim", "sublayers") and parameter.kind not in (
            parameter.VAR_KEYWORD,
            parameter.VAR_POSITIONAL,
        ):
            defaults[name] = parameter.default
    return defaults


def checked_option(cls: type[Any], option: str, default: object, value: Any) -> Any:
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


def options_given(cls: type[Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The options of `cls(*args, **kwargs)` other than dim and sublayers, if text can say all of them.

    Raises:
        UsageError: a value that `checked_option` does not accept.
    """
    try:
        bound = inspect.signature(cls.__init__).bind(None, *args, **kwargs)
    except TypeError:  # __init__ will say so; or it is a copy, which has the options of the first
        return {}
    given = dict(list(bound.arguments.items())[1:])
    for name, parameter in bound.signature.parameters.items():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            given |= given.pop(name, {})
    defaults = option_defaults(cls)
    return {
        name: checked_option(cls, name, defaults.get(name), value)
        for name, value in (defaults | given).items()
        if name not in ("dim", "sublayers") and isinstance(value, bool | int | float | str | None)
    }
