"""The operator behind `add_normalised` and `add_both`, with fake tensors, autograd and vmap.

    out, sums, inverse_rms = torch.ops.attnres.add_normalised(y, total, raw, eps, dtype)

    r = 1 / sqrt(mean(y^2) + eps);   out = total + r y;   sum = raw + y
    dy = r (g - y r^2 mean(g y)) + dsum,   dtotal = g,   draw = dsum

y [..., d]; total and raw: one tensor [..., d] each, or none; out [..., d] of `dtype`; sums: raw + y, if there is a raw;
inverse_rms [...] float32, which the backward pass takes. Each backend registers it and `add_normalised_backward` for
its device, as it does `attend`; the CPU's gradient is in C++ (csrc/library.cpp).
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
)

library.define(
    "add_normalised(Tensor y, Tensor[] total, Tensor[] raw, float eps, ScalarType dtype)"
    " -> (Tensor out, Tensor[] sums, Tensor inverse_rms)",
    tags=torch.Tag.pt2_compliant_tag,
)
library.define(
    "add_normalised_backward(Tensor grad, Tensor[] grad_sum, Tensor[] of, Tensor inverse_rms, ScalarType dtype)"
    " -> Tensor grad_y",
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


def sums_of(y: Tensor, raw: Sequence[Tensor]) -> list[Tensor]:
    """Room for raw + y, of the dtype that it has in torch."""
    return [y.new_empty(y.shape, dtype=torch.promote_types(x.dtype, y.dtype)) for x in raw]


@torch.library.register_fake("attnres::add_normalised")
def _fake(y, total, raw, eps, dtype):
    check(y, [*total, *raw], ())
    return y.new_empty(y.shape, dtype=dtype), sums_of(y, raw), y.new_empty(y.shape[:-1], dtype=torch.float32)


@torch.library.register_fake("attnres::add_normalised_backward")
def _backward_fake(grad, grad_sum, of, inverse_rms, dtype):
    check(grad, [*grad_sum, *of], [inverse_rms])
    return grad.new_empty(grad.shape, dtype=dtype)


class _AddNormalised(SingleLevelFunction):
    """Its gradient. Where that is to be differentiated again, it is made of torch's own operators."""

    @staticmethod
    def forward(ctx: Any, eps: float, dtype: torch.dtype, totals: int, y: Tensor, *more: Tensor) -> Any:
        total, raw = more[:totals], more[totals:]
        with torch.enable_grad(), AutoDispatchBelowAutograd():
            out, sums, r = add_normalised(y, total, raw, eps, dtype)
        ctx.eps, ctx.dtype, ctx.totals, ctx.dtypes = eps, y.dtype, totals, [x.dtype for x in more]
        # Sites before and after keep the raw sums as their sources, so y need not be kept, too.
        kept = (*raw, *sums) if all(torch.finfo(x.dtype).bits >= 32 for x in (*raw, *sums)) else ()
        ctx.save_for_backward(r, *(kept or [y]))
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(r)
        return out, *sums, r

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, *grads: Tensor | None) -> Any:
        r, *of = ctx.saved_tensors
        of_sums = [g for g in grads[:-1] if g is not None]
        if grad is None:
            grad_y = of_sums[0].to(ctx.dtype) if of_sums else None
        elif torch.is_grad_enabled():
            grad_y = sum(of_sums, _gradient(grad, of[0] if len(of) == 1 else of[1] - of[0], ctx.eps)).to(ctx.dtype)
        else:
            grad_y = add_normalised_backward(grad, of_sums, of, r, ctx.dtype)
        given = [*(grad for _ in range(ctx.totals)), *grads[:-1]]
        return (
            None,
            None,
            None,
            grad_y,
            *(None if g is None else g.to(dtype) for g, dtype in zip(given, ctx.dtypes, strict=True)),
        )


def _gradient(grad: Tensor, y: Tensor, eps: float) -> Tensor:
    r, wide, g = inverse_rms(y, eps), widen(y), widen(grad)
    return r * (g - wide * r * ((g * wide).mean(-1, keepdim=True) * r))


def _autograd(y, total, raw, eps, dtype):
    if not (torch.is_grad_enabled() and any(x.requires_grad for x in (y, *total, *raw))):
        with AutoDispatchBelowAutograd():
            return add_normalised(y, total, raw, eps, dtype)
    with enable_single_level_autograd_function():
        out, *sums, r = _AddNormalised.apply(eps, dtype, len(total), y, *total, *raw)  # pyright: ignore[reportAttributeAccessIssue]
    return out, sums, r


add_normalised = torch.ops.attnres.add_normalised.default
add_normalised_backward = torch.ops.attnres.add_normalised_backward.default
library.impl("add_normalised", _autograd, "Autograd")
for operator in (add_normalised, add_normalised_backward):
    torch.library.register_vmap(operator, one_by_one(operator), lib=library)
library.impl("add_normalised_backward", refuse_batched_gradients, "Batched")
