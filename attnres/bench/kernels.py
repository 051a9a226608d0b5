"""The Triton kernels compiled for GPUs that need not be there: registers, spills, shared memory, launches per call,
programs per SM, and per token the cycles in which an SM issues instructions and the bytes.

A spill costs bandwidth that the kernels do not have to give. What is compiled is what a call would launch: its launches
are noted on the CPU, where nothing is computed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend
from triton.runtime import jit

from attnres.bench import sass
from attnres.bench.measure import Row, Setting
from attnres.ops import triton_backend

TOKENS = 2048
"""The tokens of a call that is measured: enough that no parameter's part has as many rows."""

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

    def __str__(self) -> str:
        what = "merge of" if self.merges else "attention of"
        what = f"sum and {what}" if self.adds else what
        return f"{what} {self.queries} queries over {self.sources} sources, d {self.channels}"


CALLS = [
    Call(channels, queries, sources, merges, adds=merges)
    for channels in (1024, 4096, 7168)
    for queries, sources, merges in ((1, 9, False), (8, 9, False), (24, 9, False), (1, 1, True))
]


def measure(setting: Setting) -> list[Row]:
    rows = []
    for call in [replace(call, tokens=TOKENS) for call in (CALLS[:1] if setting.quick else CALLS)]:
        for direction, launches in zip(("forward", "backward"), launches_of(call), strict=True):
            for target in list(TARGETS)[:1] if setting.quick else TARGETS:
                setting.progress(f"compiling {call}, {direction}, for {target}")
                rows.append(_row(f"{call}, {direction}", call, launches, target))
    return rows


def _row(name: str, call: Call, launches: list[Launch], target: str) -> Row:
    compiled = [resources(launch, target) for launch in launches]
    texts = [f"{r}{_per_token(launch, r, call)}" for launch, r in zip(launches, compiled, strict=True)]
    spilled = max(r.spilled_bytes / (4 * r.registers) for r in compiled)
    details: dict[str, float | str] = {"launches": str(len(launches))}
    details |= {f"{n} {r.kernel}": text for n, (r, text) in enumerate(zip(compiled, texts, strict=True), 1)}
    return Row(f"{name}: bytes spilled over bytes in registers", f"compiled for {target}", "0%", "0%", spilled, details)


def _per_token(launch: Launch, compiled: Resources, call: Call) -> str:
    """Say what a token costs, of a kernel that is not of the parameters alone."""
    tiles = triton.cdiv(call.channels, launch.arguments.get("CHANNELS", call.channels))
    passes = {  # how often, for each token, what lies in no loop, in one, and in two
        "kernels.forward_kernel": (1, call.sources),
        "kernels.backward_kernel": (0, 1, call.sources),
        "tiles.forward_kernel": (1, tiles),
        "tiles.backward_kernel": (1, tiles),
        "tiles.key_gradients_kernel": (0, tiles),
    }.get(launch.name)
    if passes is None:
        return ""
    cycles = compiled.warps * compiled.code.issued(passes) / sass.SCHEDULERS
    moved = {x.data_ptr(): x.nbytes for x in launch.tensors if len(x) == call.tokens}
    return f"; per token {cycles:.0f} issue cycles and {sum(moved.values()) / call.tokens / 1e3:.1f} kB"


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
    def tensors(self) -> list[Tensor]:
        """Those of its arguments, in lists too."""
        lists = [x if isinstance(x, tuple) else (x,) for x in self.arguments.values()]
        return [x for given in lists for x in given if isinstance(x, Tensor)]

    @property
    def build(self) -> str:
        """Two launches with the same build run the same compiled kernel."""
        parts = (self.kernel.fn.__name__, self.options.num_warps, self.signature, self.constants, self.attributes)
        return repr(parts)


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
    with noted() as forward:
        prior = [*outs_before, *lses_before]
        outs, lses, sums, statistics = triton_backend.attend(sources, queries, gains, prior, added, 1e-6, 1.0, stream)
    sources[len(sources) - len(sums) :] = sums
    rounded = stream != torch.float32
    saved_outs = outs if call.merges and not rounded else []
    with noted() as backward:
        prior = [*lses_before, *outs_before] if rounded else lses_before
        arguments = (outs, [], sums, sources, queries, gains, saved_outs, lses, prior, statistics, 1.0)
        triton_backend.attend_backward(*arguments)
    return forward, backward


@dataclass(frozen=True)
class Resources:
    """What one build needs of a GPU."""

    kernel: str
    warps: int
    registers: int
    spilled_bytes: int
    shared_bytes: int
    ctas: int
    code: sass.Code

    def __str__(self) -> str:
        warps = f"{self.warps} warps of {self.registers} registers per thread, {self.ctas} programs per SM"
        spilled = f"{self.spilled_bytes} bytes spilled, {self.code.local} instructions for them"
        return f"{warps}, {spilled}, {self.shared_bytes} of shared memory"


def resources(launch: Launch, target: str) -> Resources:
    """Compile what a launch runs."""
    source = ASTSource(launch.kernel, launch.signature, launch.constants, launch.attributes)
    warps = launch.options.num_warps
    compiled = triton.compile(source, target=TARGETS[target], options={"num_warps": warps})
    cubin, shared = compiled.asm["cubin"], compiled.metadata.shared
    registers, stack = sass.usage(cubin)
    ctas = sass.ctas_per_sm(target, warps, registers, shared)
    return Resources(launch.kernel.fn.__name__, warps, registers, stack, shared, ctas, sass.code_of(cubin))
