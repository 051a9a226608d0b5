"""The registers that the Triton kernels need, and spill, on an H100-class GPU: compiled for one, with or without one.

A spill costs bandwidth that the kernels do not have to give.
"""

from __future__ import annotations

import inspect
import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from attnres.bench.measure import Row, Setting
from attnres.ops import triton_backend, triton_kernels

SM_90 = GPUTarget("cuda", 90, 32)

CASES = [(512, 4), (1024, 1), (1024, 8), (2048, 4), (4096, 1), (4096, 2), (7168, 1), (7186, 1), (8192, 1)]
"""Channels, and queries of a launch: at most triton_backend.ROW_BUDGET together."""


def measure(setting: Setting) -> list[Row]:
    kernels = (triton_kernels.forward_kernel, triton_kernels.backward_kernel)
    cases = CASES[:1] if setting.quick else CASES
    return [_row(kernel, *case, setting) for kernel in kernels for case in cases]


def _row(kernel: Any, channels: int, queries: int, setting: Setting) -> Row:
    name = f"{kernel.fn.__name__}, {channels} channels, {queries} queries"
    setting.progress(f"compiling {name}")
    best_form = best(kernel, channels, queries)
    spilled = best_form.spilled_bytes / (4 * best_form.registers)
    details: dict[str, float | str] = {
        "warps": str(best_form.warps),
        "registers per thread": str(best_form.registers),
        "spilled bytes": str(best_form.spilled_bytes),
    }
    return Row(f"{name}: bytes spilled over bytes in registers", "compiled for sm_90", "0%", "0%", spilled, details)


@dataclass(frozen=True)
class Resources:
    kernel: str
    channels: int
    queries: int
    warps: int
    registers: int
    spilled_bytes: int


def resources(kernel: Any, channels: int, queries: int, warps: int, kind: int = 1, merges: bool = False) -> Resources:
    """Compile one form of a kernel: by default bf16 sources and gradients, float32 parameters and no prior."""
    stream = "*fp16" if kind == triton_backend.KINDS[torch.float16] else "*bf16"
    prior = ("*fp32",) * (queries if merges else 0)
    types: dict[str, Any] = {
        **{name: "*i64" for name in ("sources", "grad_sources", "previous")},
        **{name: "*fp32" for name in ("keys", "statistics", "partial")},
        **{name: ("*fp32",) * queries for name in ("lses", "grad_lses")},
        **{name: prior for name in ("prior_outs", "prior_lses", "grad_prior_outs", "grad_prior_lses")},
        **{name: "i32" for name in ("tokens", "tokens_each", "first_query", "n", "s")},
        "outs": (stream,) * queries if merges or kernel is triton_kernels.forward_kernel else (),
        "grad_outs": (stream,) * queries,
        "kinds": "*i32",
        **{name: "fp32" for name in ("eps", "scale")},
    }
    constants = {
        "D": channels,
        "BLOCK": triton.next_power_of_2(channels),
        "KIND": kind,
        "GRAD_KIND": kind,
        "ADDS": False,
        "ALIGNED": channels % 8 == 0,
    }
    names = list(inspect.signature(kernel.fn).parameters)
    constants = {name: value for name, value in constants.items() if name in names}
    signature = {name: "constexpr" if name in constants else types[name] for name in names}
    aligned = [["tt.divisibility", 16]]
    attributes: dict[tuple[int, ...], Any] = {}
    for place, name in enumerate(names):
        stored = signature[name]
        if isinstance(stored, tuple):
            attributes |= {(place, entry): aligned for entry in range(len(stored))}
        elif stored.startswith("*"):
            attributes[(place,)] = aligned
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=attributes)
    compiled = triton.compile(source, target=SM_90, options={"num_warps": warps})
    registers, stack = _usage(compiled.asm["cubin"])
    return Resources(kernel.fn.__name__, channels, queries, warps, registers, stack)


def best(kernel: Any, channels: int, queries: int) -> Resources:
    """Compile with the number of warps that spills least, and of those needs the fewest registers in all."""
    tried = [resources(kernel, channels, queries, warps) for warps in triton_backend.WARPS]
    return min(tried, key=lambda r: (r.spilled_bytes, r.registers * r.warps))


def _usage(cubin: bytes) -> tuple[int, int]:
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        text = subprocess.run([tool, "-res-usage", file.name], check=True, capture_output=True, text=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+).* LOCAL:(\d+)", text)
    assert found, text
    return int(found[1]), int(found[2]) + int(found[3])
