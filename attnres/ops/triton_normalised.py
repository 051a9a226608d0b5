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
def forward_kernel(y, total, raw, out, sums, inverse_rmss, eps, D: tl.constexpr, BLOCK: tl.constexpr):
    """total, raw and sums: tuples, one tensor [tokens, D] or none. inverse_rmss: [tokens]."""
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
    for i in tl.static_range(len(raw)):
        after = v + tl.load(raw[i] + row, mask=inside, other=0.0).to(tl.float32)
        tl.store(sums[i] + row, after.to(sums[i].dtype.element_ty), mask=inside)
    tl.store(inverse_rmss + t, r)


@triton.jit
def backward_kernel(grad, grad_sum, of, inverse_rms, grad_y, D: tl.constexpr, BLOCK: tl.constexpr):
    """grad_sum: a tuple, one tensor or none; of: one or two."""
    t = tl.program_id(0).to(tl.int64)
    channel = tl.arange(0, BLOCK)
    inside = channel < D
    row = t * D + channel
    v = tl.load(of[0] + row, mask=inside, other=0.0).to(tl.float32)
    if len(of) == 2:
        v = tl.load(of[1] + row, mask=inside, other=0.0).to(tl.float32) - v
    g = tl.load(grad + row, mask=inside, other=0.0).to(tl.float32)
    r = tl.load(inverse_rms + t)
    dy = r * (g - v * (tl.sum(g * v) / D * r * r))
    for i in tl.static_range(len(grad_sum)):
        dy += tl.load(grad_sum[i] + row, mask=inside, other=0.0).to(tl.float32)
    tl.store(grad_y + row, dy.to(grad_y.dtype.element_ty), mask=inside)


def add_normalised(
    y: Tensor, total: Sequence[Tensor], raw: Sequence[Tensor], eps: float, dtype: torch.dtype
) -> tuple[Tensor, list[Tensor], Tensor]:
    normalised.check(y, [*total, *raw], ())
    y, total, raw = y.contiguous(), tuple(x.contiguous() for x in total), tuple(x.contiguous() for x in raw)
    out, r = y.new_empty(y.shape, dtype=dtype), y.new_empty(y.shape[:-1], dtype=torch.float32)
    sums = normalised.sums_of(y, raw)
    if y.numel():
        forward_kernel[(r.numel(),)](y, total, raw, out, tuple(sums), r, eps, **_sizes(y))
    return out, sums, r


def add_normalised_backward(
    grad: Tensor, grad_sum: Sequence[Tensor], of: Sequence[Tensor], inverse_rms: Tensor, dtype: torch.dtype
) -> Tensor:
    normalised.check(grad, [*grad_sum, *of], [inverse_rms])
    grad, inverse_rms = grad.contiguous(), inverse_rms.contiguous()
    grad_sum, of = tuple(x.contiguous() for x in grad_sum), tuple(x.contiguous() for x in of)
    grad_y = torch.empty_like(grad, dtype=dtype)
    if grad.numel():
        backward_kernel[(inverse_rms.numel(),)](grad, grad_sum, of, inverse_rms, grad_y, **_sizes(grad))
    return grad_y


def _sizes(y: Tensor) -> dict[str, Any]:
    return {"D": y.shape[-1], "BLOCK": triton.next_power_of_2(y.shape[-1])}
