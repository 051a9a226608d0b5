"""The operator behind `add_normalised`: `torch.ops.attnres.add_normalised`, with fake tensors, autograd and vmap.

    out, inverse_rms = add_normalised(y, total, eps, dtype)

    r = 1 / sqrt(mean(y^2) + eps);   out = total + r y
    dy = r (g - y r^2 mean(g y)),   dtotal = g

y [..., d]; total: one tensor [..., d], or none; out [..., d] of `dtype`; inverse_rms [...] float32, which the backward
pass takes. Each backend registers it and `add_normalised_backward` for its device, as it does `attend`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from attnres.errors import UsageError
from attnres.ops.library import library, one_by_one, refuse_batched_gradients
from attnres.ops.reference import inverse_rms, widen
from attnres.torch_private import (
    AutoDispatchBelowAutograd,
    SingleLevelFunction,
    enable_single_level_autograd_function,
    interpreter_stack,
)

library.define(
    "add_normalised(Tensor y, Tensor[] total, float eps, ScalarType dtype) -> (Tensor out, Tensor inverse_rms)",
    tags=torch.Tag.pt2_compliant_tag,
)
library.define(
    "add_normalised_backward(Tensor grad, Tensor y, Tensor inverse_rms) -> Tensor grad_y",
    tags=torch.Tag.pt2_compliant_tag,
)


def check(y: Tensor, alike: Sequence[Tensor], per_token: Sequence[Tensor]) -> None:
    """Raise UsageError for sizes or devices that do not fit: they would lead a kernel outside its memory."""
    if y.ndim == 0 or y.shape[-1] == 0:
        raise UsageError("a normalised sum needs y [..., d] with d of at least 1")
    for x, shape in [*((x, y.shape) for x in alike), *((x, y.shape[:-1]) for x in per_token)]:
        if x.shape != shape or x.device != y.device:
            raise UsageError(
                f"a normalised sum of y {list(y.shape)} on {y.device} cannot take {list(x.shape)} on {x.device} "
                f"where {list(shape)} belongs"
            )


@torch.library.register_fake("attnres::add_normalised")
def _fake(y, total, eps, dtype):
    check(y, total, ())
    return y.new_empty(y.shape, dtype=dtype), y.new_empty(y.shape[:-1], dtype=torch.float32)


@torch.library.register_fake("attnres::add_normalised_backward")
def _backward_fake(grad, y, inverse_rms):
    check(y, [grad], [inverse_rms])
    return torch.empty_like(y, memory_format=torch.contiguous_format)


class _AddNormalised(SingleLevelFunction):
    """Its gradient. Where that is to be differentiated again, it is made of torch's own operators."""

    @staticmethod
    def forward(ctx: Any, eps: float, dtype: torch.dtype, sums: Sequence[Tensor], y: Tensor, *total: Tensor) -> Any:
        with torch.enable_grad(), AutoDispatchBelowAutograd():
            out, r = _operator(y, total, eps, dtype)
        ctx.eps, ctx.dtype, ctx.total_dtypes = eps, y.dtype, [x.dtype for x in total]
        ctx.save_for_backward(r, *(sums or [y]))
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(r)
        return out, r

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, _: Tensor | None) -> Any:
        r, *kept = ctx.saved_tensors
        if grad is None:
            return None, None, None, None, *(None for _ in ctx.total_dtypes)
        y = kept[0] if len(kept) == 1 else (kept[1] - kept[0]).to(ctx.dtype)
        grad_y = _gradient(grad, y, ctx.eps) if torch.is_grad_enabled() else _backward_operator(grad, y, r)
        return None, None, None, grad_y, *(grad.to(dtype) for dtype in ctx.total_dtypes)


def _gradient(grad: Tensor, y: Tensor, eps: float) -> Tensor:
    r, wide, g = inverse_rms(y, eps), widen(y), widen(grad)
    return (r * (g - wide * r * ((g * wide).mean(-1, keepdim=True) * r))).to(y.dtype)


def add_normalised(
    y: Tensor, total: Sequence[Tensor], eps: float, dtype: torch.dtype, sums: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    """Call the operator, past autograd where there is no gradient to keep anything for.

    sums: none, or two whose difference is y, kept instead of it where nobody else decides what is kept.
    """
    if torch.compiler.is_compiling() or interpreter_stack():
        return _operator(y, total, eps, dtype)
    if torch.is_grad_enabled():
        return _autograd(y, total, eps, dtype, sums) if sums else _operator(y, total, eps, dtype)
    with AutoDispatchBelowAutograd():
        return _operator(y, total, eps, dtype)


def _autograd(y, total, eps, dtype, sums=()):
    if not (torch.is_grad_enabled() and any(x.requires_grad for x in (y, *total))):
        with AutoDispatchBelowAutograd():
            return _operator(y, total, eps, dtype)
    with enable_single_level_autograd_function():
        return _AddNormalised.apply(eps, dtype, sums, y, *total)  # pyright: ignore[reportAttributeAccessIssue]


_operator = torch.ops.attnres.add_normalised.default
_backward_operator = torch.ops.attnres.add_normalised_backward.default
library.impl("add_normalised", _autograd, "Autograd")
for operator in (_operator, _backward_operator):
    torch.library.register_vmap(operator, one_by_one(operator), lib=library)
library.impl("add_normalised_backward", refuse_batched_gradients, "Batched")
