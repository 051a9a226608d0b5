"""Sums of normalised outputs in Triton: one program per token, its row in registers, everything in float32."""

# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false, reportArgumentType=false
# (a kernel is not Python: Triton compiles it)

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from attnres.ops import normalised
from attnres.ops.triton_kernels import inverse_rms


@triton.jit
def forward_kernel(y, total, out, inverse_rmss, eps, D: tl.constexpr, BLOCK: tl.constexpr):
    """total: a tuple, one tensor [tokens, D] or none. inverse_rmss: [tokens]."""
    t = tl.program_id(0).to(tl.int64)
    channel = tl.arange(0, BLOCK)
    inside = channel < D
    row = t * D + channel
    v = tl.load(y + row, mask=inside, other=0.0).to(tl.float32)
    r = inverse_rms(v, tl.sum(v * v), eps, D)
    result = r * v
    for i in tl.static_range(len(total)):
        result += tl.load(total[i] + row, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row, result.to(out.dtype.element_ty), mask=inside)
    tl.store(inverse_rmss + t, r)


@triton.jit
def backward_kernel(grad, y, inverse_rms, grad_y, D: tl.constexpr, BLOCK: tl.constexpr):
    t = tl.program_id(0).to(tl.int64)
    channel = tl.arange(0, BLOCK)
    inside = channel < D
    row = t * D + channel
    v = tl.load(y + row, mask=inside, other=0.0).to(tl.float32)
    g = tl.load(grad + row, mask=inside, other=0.0).to(tl.float32)
    r = tl.load(inverse_rms + t)
    dy = r * (g - v * (tl.sum(g * v) / D * r * r))
    tl.store(grad_y + row, dy.to(grad_y.dtype.element_ty), mask=inside)


def add_normalised(y: Tensor, total: Sequence[Tensor], eps: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    normalised.check(y, total, ())
    y, total = y.contiguous(), tuple(x.contiguous() for x in total)
    out, r = y.new_empty(y.shape, dtype=dtype), y.new_empty(y.shape[:-1], dtype=torch.float32)
    if y.numel():
        forward_kernel[(r.numel(),)](y, total, out, r, eps, **_sizes(y))
    return out, r


def add_normalised_backward(grad: Tensor, y: Tensor, inverse_rms: Tensor) -> Tensor:
    normalised.check(y, [grad], [inverse_rms])
    grad, y, inverse_rms = grad.contiguous(), y.contiguous(), inverse_rms.contiguous()
    grad_y = torch.empty_like(y)
    if y.numel():
        backward_kernel[(inverse_rms.numel(),)](grad, y, inverse_rms, grad_y, **_sizes(y))
    return grad_y


def _sizes(y: Tensor) -> dict[str, Any]:
    return {"D": y.shape[-1], "BLOCK": triton.next_power_of_2(y.shape[-1])}
