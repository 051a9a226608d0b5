"""The operator behind every fused backend: `torch.ops.attnres.attend`, with fake tensors, autograd and vmap.

    outs_j, lses_j, statistics = attend(sources, queries, gains, prior, eps, scale, dtype)

    s_ji = (query_j * gain_j) . v_i / rms(v_i);   p_j = softmax_i s_j
    out_j = scale sum_i p_ji v_i;   lse_j = log sum_i exp s_ji

sources: N tensors [..., d]. queries: S vectors [d]; gains: S vectors, or none. prior: none, or (out, lse) of attention
over other sources, both float32 and with scale 1, merged as one more source whose score is lse; then S = 1. outs: S
tensors [..., d] of `dtype`; lses: S float32 tensors [...]; statistics: float32 [tokens, N (S + 1)], what the backward
pass needs besides the sources.

Each backend registers `attend` and `attend_backward` for its device: the CPU kernel by being loaded, Triton by import.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from attnres.errors import UsageError

library = torch.library.Library("attnres", "DEF")
library.define(
    "attend(Tensor[] sources, Tensor[] queries, Tensor[] gains, Tensor[] prior, float eps, float scale,"
    " ScalarType dtype)"
    " -> (Tensor[] outs, Tensor[] lses, Tensor statistics)",
    tags=torch.Tag.pt2_compliant_tag,
)
library.define(
    "attend_backward(Tensor[] grad_outs, Tensor[] grad_lses, Tensor[] sources, Tensor[] queries, Tensor[] gains,"
    " Tensor[] outs, Tensor[] lses, Tensor[] prior_lse, Tensor statistics, float scale)"
    " -> (Tensor[] grad_sources, Tensor[] grad_queries, Tensor[] grad_gains, Tensor[] grad_prior)",
    tags=torch.Tag.pt2_compliant_tag,
)


@torch.library.register_fake("attnres::attend")
def _attend_fake(sources, queries, gains, prior, eps, scale, dtype):
    x = sources[0]
    tokens = x.numel() // x.shape[-1]
    outs = [x.new_empty(x.shape, dtype=dtype) for _ in queries]
    lses = [x.new_empty(x.shape[:-1], dtype=torch.float32) for _ in queries]
    return outs, lses, x.new_empty((tokens, len(sources) * (len(queries) + 1)), dtype=torch.float32)


@torch.library.register_fake("attnres::attend_backward")
def _attend_backward_fake(grad_outs, grad_lses, sources, queries, gains, outs, lses, prior_lse, statistics, scale):
    def like(tensors: Sequence[Tensor]) -> list[Tensor]:
        return [torch.empty_like(x, memory_format=torch.contiguous_format) for x in tensors]

    grad_prior = [sources[0].new_empty(sources[0].shape, dtype=torch.float32), *like(prior_lse)] if prior_lse else []
    return like(sources), like(queries), like(gains), grad_prior


class _Attend(torch.autograd.Function):
    """What `torch.library.register_autograd` would make, at a fifth of its cost per call: that flattens and rebuilds
    the lists by pytree, forward and backward, which a small model's step feels.
    """

    @staticmethod
    def forward(
        ctx: Any, sizes: tuple[int, ...], eps: float, scale: float, dtype: torch.dtype, *tensors: Tensor
    ) -> Any:
        sources, queries, gains, prior = _split(tensors, sizes)
        with torch._C._AutoDispatchBelowAutograd():
            outs, lses, statistics = attend(sources, queries, gains, prior, eps, scale, dtype)
        # Only a merge needs its output again, and there the following norm keeps it anyway.
        saved = (sources, queries, gains, outs if prior else [], lses, prior[1:], [statistics])
        ctx.sizes = tuple(map(len, saved))
        ctx.scale = scale
        ctx.save_for_backward(*(x for group in saved for x in group))
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(statistics)
        return *outs, *lses, statistics

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        sources, queries, gains, outs, lses, prior_lse, (statistics,) = _split(ctx.saved_tensors, ctx.sizes)
        s = len(queries)
        x = sources[0]
        grad_outs = [x.new_zeros(x.shape) if g is None else g for g in grads[:s]]
        grad_lses: list[Tensor] = []
        if any(g is not None for g in grads[s : 2 * s]):
            grad_lses = [torch.zeros_like(lse) if g is None else g for g, lse in zip(grads[s:], lses, strict=False)]
        arguments = (grad_outs, grad_lses, sources, queries, gains, outs, lses, prior_lse, statistics, ctx.scale)
        if torch.is_grad_enabled():
            gradients = attend_backward(*arguments)  # refuses to be differentiated again
        else:
            with torch._C._AutoDispatchBelowAutograd():
                gradients = attend_backward(*arguments)
        return None, None, None, None, *(gradient for group in gradients for gradient in group)


def _attend_autograd(sources, queries, gains, prior, eps, scale, dtype):
    tensors = (*sources, *queries, *gains, *prior)
    if not (torch.is_grad_enabled() and any(x.requires_grad for x in tensors)):
        with torch._C._AutoDispatchBelowAutograd():
            return attend(sources, queries, gains, prior, eps, scale, dtype)
    sizes = (len(sources), len(queries), len(gains), len(prior))
    flat = _Attend.apply(sizes, eps, scale, dtype, *tensors)
    s = len(queries)
    return list(flat[:s]), list(flat[s : 2 * s]), flat[2 * s]


def _split(tensors: Sequence[Tensor], sizes: Sequence[int]) -> list[list[Tensor]]:
    rest = iter(tensors)
    return [[next(rest) for _ in range(size)] for size in sizes]


def _no_second_derivative(ctx, *_):
    raise UsageError("the fused depth attention cannot be differentiated twice; use backend='reference' for that")


attend = torch.ops.attnres.attend.default
attend_backward = torch.ops.attnres.attend_backward.default
library.impl("attend", _attend_autograd, "Autograd")
torch.library.register_autograd("attnres::attend_backward", _no_second_derivative, lib=library)
