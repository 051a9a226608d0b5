"""The bytes that depth attention moves in a whole stack on a GPU, and its launches, from shapes: no GPU is needed.

The stack runs forward and backward on the CPU, where the Triton kernels' launches are noted in place of the operators.
Each kernel, torch's own included, is taken to read or write each of its tensors once: what a program reads again comes
from the caches. Parameters and what they get are left out, as the difference between two numbers of tokens.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from attnres.bench.kernels import Launch, noted
from attnres.bench.measure import Row, Setting
from attnres.connections.block import Block
from attnres.errors import UsageError
from attnres.ops import library, triton_backend, triton_kernels
from attnres.ops.backends import native_backend
from attnres.torch_private import TorchDispatchMode

TOKENS = (2048, 4096)  # at least triton_backend.PROGRAMS, from where on no parameter's share grows


@dataclass(frozen=True)
class Shape:
    """Sublayers that are identities, so that nothing but the connection moves anything."""

    dim: int = 1024
    sublayers: int = 32
    block_size: int = 8
    dtype: torch.dtype = torch.bfloat16
    round_phase_1: bool = False

    def __str__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        rounded = ", phase 1 rounded" if self.round_phase_1 else ""
        return f"{self.sublayers} sublayers, S {self.block_size}, d {self.dim}, {dtype}{rounded}"


SHAPES = [
    Shape(),
    Shape(round_phase_1=True),
    Shape(dim=4096),
    Shape(dtype=torch.float32),
    Shape(block_size=1),
    Shape(block_size=4),
]

DECODED = Shape(sublayers=48)  # a model of 24 layers

OPERATORS = {library.attend: triton_backend.attend, library.attend_backward: triton_backend.attend_backward}


def measure(setting: Setting) -> list[Row]:
    """Count.

    Raises:
        UsageError: there is no CPU kernel, so that calls go to plain PyTorch and not to the operators.
    """
    if native_backend("cpu") == "reference":
        raise UsageError("bench traffic needs the CPU kernel, which cannot be built here: install g++ or set CXX")
    rows = []
    for shape in SHAPES[:1] if setting.quick else SHAPES:
        setting.progress(f"counting bytes of {shape}")
        forward, backward = units(shape)
        for what, moved in (("forward", forward), ("backward", backward)):
            details: dict[str, float | str] = dict(moved)
            name = f"tensors of the stream moved per sublayer, {what}, {shape}"
            rows.append(Row(name, "counted", "-", "-", sum(moved.values()), details))
    launches = launched(DECODED)
    name = f"kernels launched per sublayer, decoding a token, {DECODED}"
    rows.append(Row(name, "counted", "-", "-", launches.total() / DECODED.sublayers, dict(launches)))
    return rows


def units(shape: Shape) -> tuple[dict[str, float], dict[str, float]]:
    """What each kernel moves per sublayer, forward and backward, over the bytes of one tensor of the stream."""
    few, many = (moved(shape, tokens) for tokens in TOKENS)
    stream = (TOKENS[1] - TOKENS[0]) * shape.dim * shape.dtype.itemsize * shape.sublayers

    def growth(less: Counter[str], more: Counter[str]) -> dict[str, float]:
        return {name: (more[name] - less[name]) / stream for name in more}

    return growth(few[0], many[0]), growth(few[1], many[1])


def moved(shape: Shape, tokens: int) -> tuple[Counter[str], Counter[str]]:
    """Bytes by kernel, forward and backward."""
    connection = Block(shape.dim, shape.sublayers, shape.block_size, round_phase_1=shape.round_phase_1)
    x = torch.zeros(tokens, shape.dim, dtype=shape.dtype, requires_grad=True)
    sublayers = [nn.Identity() for _ in range(shape.sublayers)]
    with Traffic() as forward:
        h = connection.readout(connection.run(connection.start(x), sublayers))
    grad = torch.zeros_like(h)
    with Traffic() as backward:
        h.backward(grad)
    return forward.moved, backward.moved


def launched(shape: Shape) -> Counter[str]:
    """Launches by kernel where one token is decoded. The plain residual has one per sublayer, its sum."""
    connection = Block(shape.dim, shape.sublayers, shape.block_size)
    sublayers = [nn.Identity() for _ in range(shape.sublayers)]
    token = torch.zeros(1, shape.dim, dtype=shape.dtype)
    with torch.no_grad(), Traffic() as traffic:
        connection.readout(connection.run(connection.start(token), sublayers))
    return traffic.launches


class Traffic(TorchDispatchMode):
    """Counts launches and bytes by kernel; the operators launch Triton's kernels, which are only noted."""

    def __init__(self) -> None:
        super().__init__()
        self.moved: Counter[str] = Counter()
        self.launches: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in OPERATORS:
            with self, noted() as launches:
                result = OPERATORS[func](*args)
            self.moved.update(bytes_of(launches))
            self.launches.update(launch.name for launch in launches)
            return result
        result = func(*args, **(kwargs or {}))
        inputs, outputs = _tensors((args, kwargs)), _tensors(result)
        name = func.__name__.partition(".")[0]
        is_view = not name.endswith("_") and {*map(_memory, inputs)} & {*map(_memory, outputs)}
        if outputs and not is_view and "empty" not in name:
            self.launches[name] += 1
            self.moved[name] += sum(x.nbytes for x in (*inputs, *outputs))
        return result


def bytes_of(launches: list[Launch]) -> Counter[str]:
    """By kernel, the bytes of the tensors that it is given, itself or in a table of their addresses."""
    moved: Counter[str] = Counter()
    listed: dict[int, list[Tensor]] = {}  # by the memory of a table
    for launch in launches:
        given = launch.arguments
        if launch.kernel is triton_kernels.table_kernel:
            listed.setdefault(_memory(given["table"]), []).extend(given["tensors"])
            continue
        reached = [y for x in _tensors(tuple(given.values())) for y in listed.get(_memory(x), [x])]
        moved[launch.name] += sum({x.data_ptr(): x.nbytes for x in reached if x.is_floating_point()}.values())
    return moved


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        value = tuple(value.values())
    return [x for part in value for x in _tensors(part)] if isinstance(value, (list, tuple)) else []


def _memory(x: Tensor) -> int:
    return x.untyped_storage().data_ptr()
