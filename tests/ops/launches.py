"""The launches that a call of the Triton backend would make, noted on the CPU, where nothing is computed.

From them a machine without a GPU knows which builds a call needs, what the compiler makes of them for each kind of GPU,
and how many bytes a whole stack of sublayers moves.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend
from triton.runtime import jit

from attnres.connections.base import Normed
from attnres.connections.rules.block import Block
from attnres.ops import library, triton_backend, triton_kernels

TARGETS = {f"sm_{capability}": GPUTarget("cuda", capability, 32) for capability in (80, 90, 100)}


@dataclass(frozen=True)
class Call:
    """What is asked of the operator: by default the attention of one query over nine bfloat16 sources."""

    channels: int
    queries: int = 1
    sources: int = 9
    merges: bool = False
    dtypes: tuple[torch.dtype, ...] = (torch.bfloat16,)
    tokens: int = 16
    adds: bool = False
    normed: bool = False


@dataclass(frozen=True)
class Launch:
    """One launch of a kernel, as Triton's just-in-time compiler would look up its build."""

    kernel: jit.JITFunction
    arguments: dict[str, Any]
    grid: tuple[int, ...]
    options: Any
    signature: dict[str, Any]
    constants: dict[tuple[int, ...], Any]
    attributes: dict[tuple[int, ...], Any]

    @property
    def name(self) -> str:
        return f"{self.kernel.__module__.rpartition('_')[2]}.{self.kernel.fn.__name__}"

    @property
    def build(self) -> str:
        """Two launches with the same build run the same compiled kernel."""
        parts = (self.kernel.fn.__name__, self.options.num_warps, self.signature, self.constants, self.attributes)
        return repr(parts)

    def spilled_bytes(self, target: str) -> int:
        """The bytes for which a thread has no register when the launch's kernel is compiled for a GPU."""
        source = ASTSource(self.kernel, self.signature, self.constants, self.attributes)
        options = {"num_warps": self.options.num_warps}
        compiled = triton.compile(source, target=TARGETS[target], options=options)
        tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            file.write(compiled.asm["cubin"])
            file.flush()
            command = [tool, "-res-usage", file.name]
            text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        found = re.search(r"STACK:(\d+).* LOCAL:(\d+)", text)
        assert found, text
        return int(found[1]) + int(found[2])


@contextmanager
def noted() -> Iterator[list[Launch]]:
    """Note the launches of Triton kernels in place of making them."""
    launches: list[Launch] = []
    backend = make_backend(TARGETS["sm_90"])

    def note(kernel: Any, *arguments: Any, grid: tuple[int, ...], warmup: bool, **named: Any) -> None:
        bind = jit.create_function_from_signature(kernel.signature, kernel.params, backend)
        bound, specialization, rest = bind(*arguments, **named)
        launches.append(Launch(kernel, bound, grid, *kernel._pack_args(backend, named, bound, specialization, rest)))

    original = jit.JITFunction.run
    jit.JITFunction.run = note  # type: ignore[method-assign]  # pyright: ignore[reportAttributeAccessIssue]
    try:
        yield launches
    finally:
        jit.JITFunction.run = original


def launches_of(call: Call) -> tuple[list[Launch], list[Launch]]:
    """The launches of a call, forward and backward."""
    shape, s = (call.tokens, call.channels), call.queries

    def empty(count: int, *shape: int) -> list[Tensor]:
        return [torch.empty(shape) for _ in range(count)]

    sources = [torch.empty(shape, dtype=call.dtypes[i % len(call.dtypes)]) for i in range(call.sources)]
    stream = call.dtypes[0] if call.merges or s == 1 else torch.float32
    queries, gains = empty(s, call.channels), empty(s, call.channels)
    lses_before, outs_before = empty(s * call.merges, call.tokens), empty(s * call.merges, *shape)
    added = [torch.empty(shape, dtype=sources[-1].dtype)] if call.adds else []
    norm: tuple[Any, ...] = (torch.empty(call.channels, dtype=stream), 1e-6) if call.normed else ()
    with noted() as forward:
        prior = [*outs_before, *lses_before]
        given = sources, queries, gains, prior, added, 1e-6, 1.0, stream
        outs, lses, sums, statistics = triton_backend.attend(*given, *norm)
    sources[len(sources) - len(sums) :] = sums
    rounded = stream != torch.float32 or call.normed
    saved_outs = outs if call.merges and not rounded else []
    with noted() as backward:
        prior = [*lses_before, *outs_before] if rounded else lses_before
        arguments = (outs, [], sums, sources, queries, gains, saved_outs, lses, prior, statistics, 1.0)
        triton_backend.attend_backward(*arguments, *norm)
    return forward, backward


@dataclass(frozen=True)
class Stack:
    """Block with sublayers that are identities, so that nothing but the connection moves anything; or their norms."""

    dim: int = 1024
    sublayers: int = 32
    block_size: int = 8
    dtype: torch.dtype = torch.bfloat16
    normed: bool = False

    def made(self) -> Callable[[Tensor], Tensor]:
        connection = Block(self.dim, self.sublayers, self.block_size)
        identity, norm = nn.Identity(), nn.RMSNorm(self.dim, 1e-6, dtype=self.dtype)
        sublayers = [Normed.after(norm, identity) if self.normed else identity for _ in range(self.sublayers)]
        return lambda x: connection.readout(connection.run(connection.start(x), sublayers))

    def moved(self) -> tuple[float, float]:
        """Tensors of the stream moved per sublayer, forward and backward.

        What parameters take is left out, as the difference between two numbers of tokens.
        """
        few, many = self._bytes(2048), self._bytes(4096)
        stream = 2048 * self.dim * self.dtype.itemsize * self.sublayers
        return (many[0] - few[0]) / stream, (many[1] - few[1]) / stream

    def _bytes(self, tokens: int) -> tuple[int, int]:
        x = torch.zeros(tokens, self.dim, dtype=self.dtype, requires_grad=True)
        stack = self.made()
        with Traffic() as forward:
            h = stack(x)
        grad = torch.zeros_like(h)
        with Traffic() as backward:
            h.backward(grad)
        return forward.moved.total(), backward.moved.total()

    def launched(self) -> int:
        """Launches where one token is decoded. The plain residual has one per sublayer, its sum, and one per norm."""
        stack, token = self.made(), torch.zeros(1, self.dim, dtype=self.dtype)
        with torch.no_grad(), Traffic() as traffic:
            stack(token)
        return traffic.launches.total()


LAUNCHING = (triton_backend.attend, triton_backend.attend_one, triton_backend.attend_backward)
OPERATORS = {getattr(library, function.__name__): function for function in LAUNCHING}


class Traffic(TorchDispatchMode):
    """Counts launches and bytes by kernel; the operators launch Triton's kernels, which are only noted.

    Each kernel, torch's own included, is taken to read or write each of its tensors once: what a program reads again
    comes from the caches.
    """

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


def bytes_of(launches: list[Any]) -> Counter[str]:
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
