"""The operator behind every fused backend: `torch.ops.attnres.attend`, with fake tensors, autograd and vmap.

    outs_j, lses_j, statistics = attend(sources, queries, gains, prior, eps, dtype)

    s_ji = (query_j * gain_j) . v_i / rms(v_i);   p_j = softmax_i s_j
    out_j = sum_i p_ji v_i;   lse_j = log sum_i exp s_ji

sources: N tensors [..., d]. queries: S vectors [d]; gains: S vectors, or none. prior: none, or (out, lse) of attention
over other sources, both float32, merged as one more source whose score is lse; then S = 1. outs: S tensors [..., d] of
`dtype`; lses: S float32 tensors [...]; statistics: float32 [tokens, N (S + 1)], what the backward pass needs besides
the sources.

Each backend registers `attend` and `attend_backward` for its device: the CPU kernel by being loaded, Triton by import.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from attnres.errors import UsageError

library = torch.library.Library("attnres", "DEF")
library.define(
    "attend(Tensor[] sources, Tensor[] queries, Tensor[] gains, Tensor[] prior, float eps, ScalarType dtype)"
    " -> (Tensor[] outs, Tensor[] lses, Tensor statistics)",
    tags=torch.Tag.pt2_compliant_tag,
)
library.define(
    "attend_backward(Tensor[] grad_outs, Tensor[] grad_lses, Tensor[] sources, Tensor[] queries, Tensor[] gains,"
    " Tensor[] outs, Tensor[] lses, Tensor[] prior_lse, Tensor statistics)"
    " -> (Tensor[] grad_sources, Tensor[] grad_queries, Tensor[] grad_gains, Tensor[] grad_prior)",
    tags=torch.Tag.pt2_compliant_tag,
)


@torch.library.register_fake("attnres::attend")
def _attend_fake(sources, queries, gains, prior, eps, dtype):
    x = sources[0]
    tokens = x.numel() // x.shape[-1]
    outs = [x.new_empty(x.shape, dtype=dtype) for _ in queries]
    lses = [x.new_empty(x.shape[:-1], dtype=torch.float32) for _ in queries]
    return outs, lses, x.new_empty((tokens, len(sources) * (len(queries) + 1)), dtype=torch.float32)


@torch.library.register_fake("attnres::attend_backward")
def _attend_backward_fake(grad_outs, grad_lses, sources, queries, gains, outs, lses, prior_lse, statistics):
    def like(tensors: Sequence[Tensor]) -> list[Tensor]:
        return [torch.empty_like(x, memory_format=torch.contiguous_format) for x in tensors]

    grad_prior = [sources[0].new_empty(sources[0].shape, dtype=torch.float32), *like(prior_lse)] if prior_lse else []
    return like(sources), like(queries), like(gains), grad_prior


def _save_for_backward(ctx, inputs, output) -> None:
    sources, queries, gains, prior, _, _ = inputs
    outs, lses, statistics = output
    # Only a merge needs its output again, and there the following norm keeps it anyway.
    groups = (sources, queries, gains, outs if prior else [], lses, prior[1:], [statistics])
    ctx.sizes = [len(group) for group in groups]
    ctx.save_for_backward(*(x for group in groups for x in group))
    ctx.shape = sources[0].shape


def _backward(ctx, grad_outs, grad_lses, _):
    saved = iter(ctx.saved_tensors)
    sources, queries, gains, outs, lses, prior_lse, (statistics,) = ([next(saved) for _ in range(n)] for n in ctx.sizes)
    dtype = torch.float32
    grad_outs = [sources[0].new_zeros(ctx.shape, dtype=dtype) if g is None else g for g in grad_outs]
    if all(g is None for g in grad_lses):
        grad_lses = []
    grad_lses = [torch.zeros_like(lse) if g is None else g for g, lse in zip(grad_lses, lses, strict=False)]
    gradients = torch.ops.attnres.attend_backward.default(
        grad_outs, grad_lses, sources, queries, gains, outs, lses, prior_lse, statistics
    )
    return *gradients, None, None


def _no_second_derivative(ctx, *_):
    raise UsageError("the fused depth attention cannot be differentiated twice; use backend='reference' for that")


torch.library.register_autograd("attnres::attend", _backward, setup_context=_save_for_backward, lib=library)
torch.library.register_autograd("attnres::attend_backward", _no_second_derivative, lib=library)

attend = torch.ops.attnres.attend.default
