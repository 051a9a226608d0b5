"""Messages as JSON: strict on what comes in, strict JSON out."""

from __future__ import annotations

import base64
import dataclasses
import json
import math
from typing import Any, TypeVar

import numpy as np
from torch import Tensor

from attnres.errors import UsageError, first_line
from attnres.look.messages import Array
from attnres.train.jsonconfig import from_json

T = TypeVar("T")


def decode(cls: type[T], body: bytes) -> T:
    """Read a request. Raises UsageError on anything that is not exactly one."""
    try:
        return from_json(cls, json.loads(body))
    except UsageError:
        raise
    except (ValueError, TypeError, OverflowError) as error:
        raise UsageError(f"this is no request ({first_line(error)}); reload the page") from None


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
