"""What computes an operator: plain PyTorch, or the fused backend of a tensor's device."""

from __future__ import annotations

import functools
import importlib.util
import logging
import os
from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.compiler import is_compiling, is_exporting

from attnres.errors import UsageError, install_command
from attnres.torch_private import TransformType, constant_to_compiler, in_forward_mode, interpreter_stack

Backend = Literal["auto", "reference", "cpu", "triton"]
BACKENDS = get_args(Backend)

log = logging.getLogger("attnres")

_FUSED_DTYPES = {
    "cpu": (torch.float32, torch.bfloat16),
    "triton": (torch.float32, torch.bfloat16, torch.float16),
}


def is_fused(backend: Backend, tensors: Sequence[Tensor], dtype: torch.dtype) -> bool:
    """Whether the device's fused backend computes it; if not, the reference does.

    Raises UsageError if the backend asked for by name cannot.
    """
    if backend == "auto":
        return not _obstacle(native_backend(tensors[0].device.type), tensors, dtype)
    if backend not in BACKENDS:
        raise UsageError(f"backend must be one of {', '.join(BACKENDS)}, not {backend!r}")
    if backend == "reference":
        return False
    device = tensors[0].device.type
    fused = native_backend(device)
    if backend != fused:
        raise UsageError(f"backend {backend!r} cannot run on {device} here; use backend='auto'")
    obstacle = _obstacle(fused, tensors, dtype)
    if obstacle:
        raise UsageError(f"backend {backend!r} does not take {obstacle}; use backend='auto' or 'reference'")
    return True


def _obstacle(fused: str, tensors: Sequence[Tensor], dtype: torch.dtype) -> str:
    """Name what of the input, or of the output asked for, the fused backend does not take; empty if it takes it."""
    if fused == "reference":
        return "this device"
    takes = _FUSED_DTYPES[fused]
    if dtype not in takes:
        return str(dtype).removeprefix("torch.")
    for x in tensors:
        if x.dtype not in takes:
            return str(x.dtype).removeprefix("torch.")
    if is_exporting() and torch.onnx.is_in_onnx_export():
        return "export to ONNX, which knows torch's own operators"
    # An operator with only a backward formula would lose tangents in silence.
    if in_forward_mode():
        return "forward-mode differentiation"
    if torch.is_grad_enabled() and not is_compiling() and _gradient_levels() > 1:
        return "second derivatives"
    return ""


def _gradient_levels() -> int:
    """Count the `torch.func` gradients that are being taken of one another here."""
    return sum(level.key() == TransformType.Grad for level in interpreter_stack() or ())


@constant_to_compiler
def native_backend(device: str) -> str:
    """Name the fused backend of a kind of device and make it ready; "reference" where there is none. Logged once."""
    return _prepare(device)


@functools.cache
def _prepare(device: str) -> str:
    name = "reference"
    if device == "cuda" or (device == "cpu" and interpreted()):
        if importlib.util.find_spec("triton"):
            from attnres.ops import triton_backend

            triton_backend.register(device)
            name = "triton"
        else:
            log.warning("Triton is not installed, so depth attention runs in plain PyTorch: %s", install_command("gpu"))
    elif device == "cpu":
        from attnres.ops import cpu

        name = "cpu" if cpu.load() else name
    log.info("depth attention on %s: %s backend", device, name)
    return name


def interpreted() -> bool:
    """Tell whether Triton's interpreter stands in for a GPU, as in tests: it then takes the CPU's tensors."""
    return os.environ.get("TRITON_INTERPRET") == "1"
