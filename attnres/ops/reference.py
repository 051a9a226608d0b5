"""Depth attention in plain PyTorch: float32 inside (float64 for float64 input), one rounding at the end."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def depth_weights(sources: Sequence[Tensor], query: Tensor, gain: Tensor | None, eps: float = 1e-6) -> Tensor:
    """p = softmax_i(query . RMSNorm(v_i; gain, eps)), [sources, ..., 1]. Attention Residuals (2603.15031), eq. 3.

    sources: [..., d] each; query and gain: [d].
    """
    return torch.softmax(torch.stack(_scores(sources, query, gain, eps)), 0)


def attend(
    sources: Sequence[Tensor],
    queries: Sequence[Tensor],
    gains: Sequence[Tensor],
    prior: Sequence[Tensor],
    eps: float,
    dtype: torch.dtype,
    scale: float = 1.0,
) -> tuple[list[Tensor], list[Tensor]]:
    """outs and lses of the operator that `attnres.ops.library` describes, with no statistics."""
    outs, lses = [], []
    for j, query in enumerate(queries):
        scores = _scores(sources, query, gains[j] if gains else None, eps)
        values = list(sources)
        if prior:
            scores.append(prior[1].unsqueeze(-1))
            values.append(prior[0])
        stacked = torch.stack(scores)
        weights = torch.softmax(stacked, 0)
        out = weights[0] * values[0]
        for weight, value in zip(weights[1:], values[1:], strict=True):
            out = out + weight * value
        outs.append((out if scale == 1.0 else scale * out).to(dtype))
        lses.append(torch.logsumexp(stacked, 0).squeeze(-1))
    return outs, lses


def widen(x: Tensor) -> Tensor:
    """x in float32, or in float64 if it is already there."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _scores(sources: Sequence[Tensor], query: Tensor, gain: Tensor | None, eps: float) -> list[Tensor]:
    """query . RMSNorm(v_i; gain, eps) for each source, [..., 1]."""
    key_vector = widen(query) if gain is None else widen(query) * widen(gain)
    scores = []
    for source in map(widen, sources):
        inverse_rms = torch.rsqrt(source.square().mean(-1, keepdim=True) + eps)
        scores.append((source * key_vector).sum(-1, keepdim=True) * inverse_rms)
    return scores
