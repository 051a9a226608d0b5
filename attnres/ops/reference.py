"""Depth attention in plain PyTorch: float32 inside (float64 for float64 input), one rounding at the end."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def depth_weights(sources: Sequence[Tensor], query: Tensor, gain: Tensor | None, eps: float = 1e-6) -> Tensor:
    """Return the weights of depth attention, p = softmax_i(query . RMSNorm(v_i; gain, eps)).

    Source: Attention Residuals (2603.15031), eq. 3.

    Args:
        sources: N of [..., d], in any floating dtype.
        query: [d].
        gain: [d]; ones if None.
        eps: what is added to the mean square.

    Returns:
        p [N, ..., 1] in float32, or float64 for float64 input.
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
    """Return the outs and lses of the operator that `attnres.ops.library` describes, without statistics."""
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
    """Return x in float32, or as it is if it is float64 already."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _scores(sources: Sequence[Tensor], query: Tensor, gain: Tensor | None, eps: float) -> list[Tensor]:
    """Return query . RMSNorm(v_i; gain, eps) for each source, [..., 1]."""
    key_vector = widen(query) if gain is None else widen(query) * widen(gain)
    scores = []
    for source in map(widen, sources):
        inverse_rms = torch.rsqrt(source.square().mean(-1, keepdim=True) + eps)
        scores.append((source * key_vector).sum(-1, keepdim=True) * inverse_rms)
    return scores
