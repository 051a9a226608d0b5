"""Messages as JSON: strict on what comes in, strict JSON out."""

from __future__ import annotations

import base64
import dataclasses
import json
import math
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, cast, get_args, get_origin, get_type_hints

import numpy as np
from torch import Tensor

from attnres.errors import UsageError
from attnres.files import read_json
from attnres.look.messages import Array

T = TypeVar("T")


def decode(cls: type[T], body: bytes) -> T:
    """Read a request. Raises UsageError, naming the field, on anything that is not exactly one."""
    try:
        data = read_json(body)
    except ValueError:
        raise UsageError("the request is not JSON; reload the page") from None
    return cast(T, _read(cls, data, cls.__name__.lower()))


def encode(message: Any) -> bytes:
    """Write a message as one line."""
    line = {"kind": type(message).__name__.lower(), **_plain(message)}
    return json.dumps(line, allow_nan=False, separators=(",", ":")).encode() + b"\n"


def array(tensor: Tensor) -> Array:
    """Numbers in bulk."""
    numbers = np.ascontiguousarray(tensor.detach().float().cpu().numpy(), dtype="<f4")
    return Array(numbers.shape, base64.b64encode(numbers.tobytes()).decode("ascii"))


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _read(hint: Any, data: Any, where: str) -> Any:
    if dataclasses.is_dataclass(hint):
        return _read_record(cast(type, hint), data, where)
    if get_origin(hint) is UnionType:
        (kind,) = (option for option in get_args(hint) if option is not NoneType)
        return None if data is None else _read(kind, data, where)
    if get_origin(hint) is tuple:
        if not isinstance(data, list):
            raise UsageError(f"{where} must be a list")
        return tuple(_read(get_args(hint)[0], item, where) for item in data)
    if get_origin(hint) is Literal:
        if data not in get_args(hint):
            raise UsageError(f"{where} must be one of {', '.join(get_args(hint))}")
        return data
    if hint is float and isinstance(data, int) and not isinstance(data, bool) and abs(data) < 1e300:
        return float(data)
    if type(data) is not hint or (hint is float and not math.isfinite(data)):
        kinds = {int: "a whole number", float: "a finite number", str: "a text"}
        raise UsageError(f"{where} must be {kinds[hint]}")
    return data


def _read_record(cls: type, data: Any, where: str) -> Any:
    if not isinstance(data, dict):
        raise UsageError(f"{where} must be an object")
    hints = get_type_hints(cls)
    if unknown := data.keys() - hints.keys():
        raise UsageError(f"{where} has no field {sorted(unknown)[0]!r}")
    fields = dataclasses.fields(cls)
    missing = [field.name for field in fields if field.default is dataclasses.MISSING and field.name not in data]
    if missing:
        raise UsageError(f"{where} needs {missing[0]}")
    return cls(**{name: _read(hints[name], item, f"{where}.{name}") for name, item in data.items()})
