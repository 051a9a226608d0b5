"""Depth attention in plain PyTorch: float32 inside (float64 for float64 input), one rounding at the end."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.compiler import is_compiling

from attnres.torch_private import interpreter_stack

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def depth_weights(
    sources: Sequence[Tensor], query: Tensor, gain: Tensor | None, eps: float = 1e-6, heads: int = 1
) -> Tensor:
    """Return the weights of depth attention, p = softmax_i(query . RMSNorm(v_i; gain, eps)).

    Source: Attention Residuals (2603.15031), eq. 3.

    Args:
        sources: N of [..., d], in any floating dtype.
        query: [d].
        gain: [d]; ones if None.
        eps: added to the mean square.
        heads: slices of the channels, each with a softmax of its own.

    Returns:
        p [N, ..., heads] in float32, or float64 for float64 input.
    """
    gains = () if gain is None else (gain,)
    sources, (query,), gains = _as_wide(sources, (query,), gains)
    return torch.softmax(torch.stack(depth_scores(sources, _key_vector(query, *gains), eps, heads)), 0)


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
    sources, queries, gains, prior = _as_wide(sources, queries, gains, prior)
    outs, lses = [], []
    for j, query in enumerate(queries):
        heads = query.shape[:-1].numel()
        scores = depth_scores(sources, _key_vector(query, gains[j] if gains else None).flatten(), eps, heads)
        values = list(sources)
        if prior:
            lse = prior[len(queries) + j]
            scores.append(lse if query.ndim == 2 else lse.unsqueeze(-1))
            values.append(prior[j])
        stacked = torch.stack(scores)
        weights = over_channels(torch.softmax(stacked, 0), query.numel())
        out = weights[0] * values[0]
        for weight, value in zip(weights[1:], values[1:], strict=True):
            out = out + weight * value
        outs.append((out if scale == 1.0 else scale * out).to(dtype))
        lse = torch.logsumexp(stacked, 0)
        lses.append(lse if query.ndim == 2 else lse.squeeze(-1))
    return outs, lses


def over_channels(weights: Tensor, dim: int) -> Tensor:
    """Weights [.., heads] as factors of the channels: [.., 1] of one head, else [.., dim]."""
    heads = weights.shape[-1]
    return weights if heads == 1 else weights.repeat_interleave(dim // heads, -1)


def add_normalised(y: Tensor, total: Tensor | None, eps: float, dtype: torch.dtype) -> Tensor:
    """Return total + y / rms(y) in `dtype`, rounded once."""
    y, r, _ = _with_inverse_rms(widen(y), eps)
    normalised = r * y
    return (normalised if total is None else total + normalised).to(dtype)


def widen(x: Tensor) -> Tensor:
    """Return x in float32, or unchanged if it is float64."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def inverse_rms(x: Tensor, eps: float) -> Tensor:
    """1 / sqrt(mean(x^2) + eps) over the channels, [..., 1], in at least float32."""
    _, r, size = _with_inverse_rms(widen(x), eps)
    return r if size is None else r / size


def _with_inverse_rms(x: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor | None]:
    """x / size, its 1/rms [..., 1], and size [..., 1]: None if 1, a constant to autograd otherwise.

    size is the largest entry, or sqrt(eps) if that is larger: float32 has no room for the squares of entries of 1e19,
    nor, without an eps, for those of 1e-20 and their gradients.
    """
    # Not rsqrt: its gradient has rms^-3, which from 1e13 on is not a normal float32 and soon nothing.
    mean = x.square().mean(-1, keepdim=True) + eps
    if _fits(mean):
        return x, mean.sqrt().reciprocal(), None
    size = torch.linalg.vector_norm(x.detach(), math.inf, -1, keepdim=True)
    size = size.clamp(min=math.sqrt(eps)) if eps else torch.where(size == 0, 1.0, size)
    x = x / size
    return x, (x.square().mean(-1, keepdim=True) + eps / size / size).sqrt().reciprocal(), size


def _fits(mean: Tensor) -> bool:
    """Whether these means of squares neither overflowed nor vanished. False where numbers cannot be looked at.

    Looking is free on a CPU; the division by size would take a fifth of the attention's time there. A GPU would have to
    be waited for, a compiler and torch.func know no numbers, and a compiler makes one loop of both.
    Tensors of shapes alone fit, so that operations are counted as the formula has them.
    """
    if mean.device.type == "meta":
        return True
    if (
        type(mean) is not Tensor
        or mean.device.type != "cpu"
        or is_compiling()
        or torch.jit.is_tracing()  # pyright: ignore[reportPrivateImportUsage]
        or interpreter_stack()
    ):
        return False
    return bool(((mean > 1e-30) & (mean < math.inf)).all())


def depth_scores(sources: Sequence[Tensor], key_vector: Tensor, eps: float | None, heads: int = 1) -> list[Tensor]:
    """Score each source: key_vector . v_i / rms(v_i) by slices of the channels, [..., heads].

    key_vector: query times gain, [d] or one per token [..., d], in at least float32. eps None leaves the norm out.
    """
    scores = []
    for source in map(widen, sources):
        x, r, _ = (source, None, None) if eps is None else _with_inverse_rms(source, eps)
        score = (x * key_vector).unflatten(-1, (heads, -1)).sum(-1)
        scores.append(score if r is None else score * r)
    return scores


def _as_wide(*groups: Sequence[Tensor]) -> Sequence[Sequence[Tensor]]:
    """The tensors as they are, or all of them in float64 if one of them is."""
    if all(x.dtype != torch.float64 for group in groups for x in group):
        return groups
    return [[x.double() for x in group] for group in groups]


def _key_vector(query: Tensor, gain: Tensor | None = None) -> Tensor:
    return widen(query) if gain is None else widen(query) * widen(gain)
