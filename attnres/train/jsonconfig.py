"""The run's configuration to JSON and back."""

from __future__ import annotations

import contextlib
import dataclasses
import types
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from attnres.connections import saved_connection
from attnres.errors import UsageError
from attnres.model import TransformerConfig
from attnres.train.runconfig import RunConfig

T = TypeVar("T")


def config_to_json(config: RunConfig) -> dict[str, Any]:
    """Write the configuration as a JSON value: nested dicts, lists, strings, numbers, booleans and None."""
    model = dataclasses.asdict(config.model)
    model["connection"] = saved_connection(config.model.connection, config.model.sublayers)
    return _plain({**dataclasses.asdict(config), "model": model})


def config_from_json(data: Any) -> RunConfig:
    """Make the configuration that `config_to_json` wrote. Fields that are left out have their defaults.

    Raises:
        UsageError: an unknown field or a value of the wrong type, naming the field.
    """
    return from_json(RunConfig, data)


def model_to_json(model: TransformerConfig) -> dict[str, Any]:
    """A model's part of the configuration."""
    return config_to_json(RunConfig(model=model))["model"]


def flat_fields(value: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested dicts: names joined by dots -> values."""
    flat: dict[str, Any] = {}
    for key, item in value.items():
        flat |= flat_fields(item, f"{prefix}{key}.") if isinstance(item, dict) else {prefix + key: item}
    return flat


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, tuple | list) else value


def from_json(cls: type[T], data: Any, where: str = "") -> T:
    """Make a dataclass of a JSON object, field by field. Raises UsageError as `config_from_json` does."""
    if not isinstance(data, dict):
        raise UsageError(f"{where.rstrip('.') or 'the configuration'} must be a JSON object, not {data!r}")
    hints = get_type_hints(cls)
    unknown = [where + key for key in data if key not in hints]
    if unknown:
        raise UsageError(f"unknown configuration field {', '.join(unknown)}; known here: {', '.join(hints)}")
    return cls(**{key: _value(hints[key], value, where + key) for key, value in data.items()})


def _value(hint: Any, value: Any, where: str) -> Any:
    """The JSON value as the type that the field is declared with."""
    if dataclasses.is_dataclass(hint):
        return from_json(hint, value, f"{where}.")  # type: ignore[arg-type]
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal and value in arguments:
        return value
    if origin is tuple and isinstance(value, list):
        return tuple(_value(arguments[0], item, where) for item in value)
    if origin is dict and isinstance(value, dict):
        return {key: _value(arguments[1], item, where) for key, item in value.items()}
    if origin in (Union, types.UnionType):
        for argument in arguments:
            with contextlib.suppress(UsageError):
                return _value(argument, value, where)
    if hint is float and _is(int, value):
        return float(value)
    if isinstance(hint, type) and origin is None and _is(hint, value):
        return value
    expected = " or ".join(map(repr, arguments)) if origin is Literal else getattr(hint, "__name__", None) or str(hint)
    raise UsageError(f"configuration field {where} must be {expected}, not {value!r}")


def _is(kind: type, value: Any) -> bool:
    """isinstance, but True is no number."""
    return isinstance(value, kind) and not (isinstance(value, bool) and kind is not bool)
