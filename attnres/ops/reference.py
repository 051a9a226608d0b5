"""Depth attention in plain PyTorch: float32 inside (float64 for float64 input), one rounding at the end."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def depth_weights(sources: Sequence[Tensor], query: Tensor, gain: Tensor | None, eps: float = 1e-6) -> Tensor:
    """p = softmax_i(query . RMSNorm(v_i; gain, eps)), [sources, ..., 1]. Attention Residuals (2603.15031), eq. 3.

    sources: [..., d] each; query and gain: [d].
    """
    query, gain = widen(query), None if gain is None else widen(gain)
    key_vector = query if gain is None else query * gain
    scores = []
    for source in map(widen, sources):
        inverse_rms = torch.rsqrt(source.square().mean(-1, keepdim=True) + eps)
        scores.append((source * key_vector).sum(-1, keepdim=True) * inverse_rms)
    return torch.softmax(torch.stack(scores), 0)


def depth_attention(sources: Sequence[Tensor], query: Tensor, gain: Tensor | None = None, eps: float = 1e-6) -> Tensor:
    """h = sum_i p_i v_i with p of `depth_weights`: the sum is over the raw sources. Shape and dtype of sources[0]."""
    weights = depth_weights(sources, query, gain, eps)
    h = weights[0] * sources[0]
    for weight, source in zip(weights[1:], sources[1:], strict=True):
        h = h + weight * source
    return h.to(sources[0].dtype)


def widen(x: Tensor) -> Tensor:
    """x in float32, or in float64 if it is already there."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
