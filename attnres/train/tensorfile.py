"""A safetensors file that several processes write at once: each puts its own rows of each tensor where they belong.

Nobody joins anything: the places follow from names, types and shapes, which all processes know before the first byte.
"""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attnres.files import named_errors, sync

TYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "I64": torch.int64,
    "I32": torch.int32,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
NAMES = {dtype: name for name, dtype in TYPES.items()}


class Shape(NamedTuple):
    """What a file says of a tensor."""

    dtype: str
    sizes: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return math.prod(self.sizes) * TYPES[self.dtype].itemsize


class TensorRows(NamedTuple):
    """A part of a tensor: its rows from `first` on, or all of one without rows."""

    first: int
    values: Tensor


def shape_of(tensor: Tensor) -> Shape:
    """Describe a tensor; one that is cut over processes as the whole."""
    return Shape(NAMES[tensor.dtype], tuple(tensor.shape))


class TensorFile:
    """One such file, with all of its tensors known."""

    def __init__(self, path: Path, shapes: Mapping[str, Shape]) -> None:
        self.path = path
        self.shapes = shapes
        self._places: dict[str, int] = {}
        entries: dict[str, Any] = {}
        end = 0
        # Large types first, as safetensors itself does: then every tensor is aligned.
        for name, shape in sorted(shapes.items(), key=lambda item: (-TYPES[item[1].dtype].itemsize, item[0])):
            self._places[name], end = end, end + shape.nbytes
            entries[name] = {"dtype": shape.dtype, "shape": shape.sizes, "data_offsets": [self._places[name], end]}
        text = json.dumps(entries, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        self._header = struct.pack("<Q", len(text)) + text
        self._size = len(self._header) + end

    def create(self) -> None:
        """Make the file, with room for all tensors. For one of the processes, before the others write."""
        with named_errors(self.path), self.path.open("xb") as file:
            file.write(self._header)
            file.truncate(self._size)
        sync(self.path)

    def write(self, parts: Mapping[str, TensorRows]) -> None:
        """Put this process's rows into the file, durably."""
        with named_errors(self.path), self.path.open("r+b", buffering=0) as file:
            for name, part in parts.items():
                shape = self.shapes[name]
                place = self._places[name]
                if part.first:
                    place += part.first * shape.nbytes // shape.sizes[0]
                _write(file.fileno(), part.values, len(self._header) + place)
            os.fsync(file.fileno())


def _write(descriptor: int, values: Tensor, place: int) -> None:
    flat = values.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    left = memoryview(flat.numpy())  # pyright: ignore[reportArgumentType]
    while left:  # the system takes 2 GB at most, and less on an almost full disk
        written = os.pwrite(descriptor, left, place)
        left, place = left[written:], place + written
