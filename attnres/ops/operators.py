"""The operators of depth attention and of normalised sums."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling

from attnres.errors import UsageError
from attnres.ops import library, normalised, reference
from attnres.ops.backends import Backend, is_fused
from attnres.ops.norm import Norm
from attnres.torch_private import AutoDispatchBelowAutograd


def depth_attention(
    sources: Sequence[Tensor] | Tensor,
    query: Tensor,
    gain: Tensor | None = None,
    eps: float = 1e-6,
    backend: Backend = "auto",
) -> Tensor:
    """Attend over depth: h = sum_i p_i v_i with p = softmax_i(query . RMSNorm(v_i; gain, eps)).

    Computed in float32 (float64 for float64 input) and rounded once. Entries of sources may be as large as 1e34 if
    those of the query and of gradients are of order one: products must fit float32, squares need not.
    Source: Attention Residuals (2603.15031), eq. 3; spec.md 3.

    Args:
        sources: one or more tensors v_i [..., d] in float32, bfloat16, float16 or float64, which may be mixed; or one
            tensor that stacks them.
        query: [d], in any of these dtypes.
        gain: [d], in any of these dtypes; ones if None.
        eps: added to the mean square; not negative.
        backend: "reference" is plain PyTorch and takes everything; "cpu" and "triton" are fused, forward and backward;
            "auto" is the fastest of them that takes the input.

    Returns:
        h [..., d] in the dtype of the first source, which is the stream's.

    Raises:
        UsageError: the shapes do not fit, or the named backend does not support the input.
    """
    sources = list(sources)
    _check(sources, "sources", [query] if gain is None else [query, gain], "query and gain", eps)
    gains = [] if gain is None else [gain]
    return read(sources, None, [query], gains, (), eps, sources[0].dtype, backend)[0][0]


def attend_blocks(
    bank: Sequence[Tensor] | Tensor, queries: Tensor, eps: float = 1e-6, backend: Backend = "auto"
) -> tuple[Tensor, Tensor]:
    """Attend with all queries of a block to the finished blocks: phase 1.

    Each out[j] equals depth_attention(bank, queries[j]), not yet rounded: `merge_partial` rounds. Source: Attention
    Residuals (2603.15031), Algorithm 1; spec.md 5.

    Args:
        bank: the finished blocks, as `depth_attention` takes its sources.
        queries: [S, d] with S of at least 1, each with its gain already multiplied in.
        eps: as for `depth_attention`.
        backend: as for `depth_attention`.

    Returns:
        out [S, ..., d] and the log-sum-exp of the scores lse [S, ...], both float32.

    Raises:
        UsageError: as for `depth_attention`.
    """
    if queries.ndim != 2 or len(queries) == 0:
        raise UsageError(f"queries must be [S, d] with S of at least 1, not {list(queries.shape)}")
    bank = list(bank)
    _check(bank, "bank", [queries[0]], "queries", eps)
    outs, lses = attend(bank, queries.unbind(), [], (), eps, _inner_dtype(bank), backend)
    return torch.stack(outs), torch.stack(lses)


def merge_partial(
    partial: Tensor,
    query: Tensor,
    out_j: Tensor,
    lse_j: Tensor,
    eps: float = 1e-6,
    backend: Backend = "auto",
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Merge one more source into the result of `attend_blocks`: phase 2.

        z = query . partial / rms(partial);   a = sigmoid(z - lse_j);   h = (1 - a) out_j + a partial

    Source: Attention Residuals (2603.15031), Algorithm 1; spec.md 5.

    Args:
        partial: [..., d], the sum of the block that is still open.
        query: [d], with its gain already multiplied in.
        out_j: [..., d], this query's row of `attend_blocks`' out.
        lse_j: [...], this query's row of `attend_blocks`' lse.
        eps: as for `depth_attention`.
        backend: as for `depth_attention`.
        dtype: of h; partial's if None. Give the stream's where autocast makes them differ.

    Returns:
        h [..., d] in `dtype`.

    Raises:
        UsageError: as for `depth_attention`.
    """
    _check([partial, out_j], "partial and out_j", [query], "query", eps, dtype)
    if lse_j.shape != partial.shape[:-1]:
        raise UsageError(f"lse_j must be {list(partial.shape[:-1])}, not {list(lse_j.shape)}")
    return read([partial], None, [query], [], (out_j, lse_j), eps, dtype or partial.dtype, backend)[0][0]


def attend(
    sources: Sequence[Tensor],
    queries: Sequence[Tensor],
    gains: Sequence[Tensor],
    prior: Sequence[Tensor],
    eps: float,
    dtype: torch.dtype,
    backend: Backend = "auto",
    scale: float = 1.0,
) -> tuple[list[Tensor], list[Tensor]]:
    """The general form of depth attention, for several queries; `attnres.ops.library` describes the arguments.

    Args:
        sources: N of [..., d]. Shapes are not checked here.
        queries: S of [d].
        gains: S of [d], or none.
        prior: none, or S of out [..., d], then S of lse [...]: each query's attention over other sources. The outs'
            gradients come in their dtype, so outs of `dtype` cost a rounding each way and save memory.
        eps: as for `depth_attention`.
        dtype: of the outs.
        backend: as for `depth_attention`.
        scale: what multiplies the outs in float32, before they are rounded, and neither the lses nor the prior. With
            the number of sources it turns the mean that attention starts from into their sum (spec.md 13, trap 12).

    Returns:
        outs, S of [..., d] in `dtype`, and lses, S of [...], not stacked.

    Raises:
        UsageError: the named backend does not support the input.
    """
    if not is_fused(backend, (*sources, *queries, *gains, *prior), dtype):
        return reference.attend(sources, queries, gains, prior, eps, dtype, scale)
    outs, lses, _ = _attend(sources, queries, gains, prior, (), eps, scale, dtype)
    return outs, lses


def read(
    sources: Sequence[Tensor],
    y: Tensor | None,
    queries: Sequence[Tensor],
    gains: Sequence[Tensor],
    prior: Sequence[Tensor],
    eps: float,
    dtype: torch.dtype,
    backend: Backend = "auto",
    scale: float = 1.0,
    norm: Norm | None = None,
) -> tuple[Sequence[Tensor], Tensor | None]:
    """Add y to the last source, attend to the sources and normalise what was read, in one pass where that is fused.

    The same as the outs of `attend([*sources[:-1], sources[-1] + y], ...)`, each under `norm`. The sum and its gradient
    are not read again. What is normalised is not kept for the backward pass, but made again.

    Args:
        sources: as for `attend`, like all other arguments; with a prior there may be none.
        y: [..., d], in any of the sources' dtypes; None adds nothing.
        norm: of the outs; None leaves them as they are. It is a part of the fused operators for one query.

    Returns:
        outs, S of [..., d] in `dtype`, and the sum sources[-1] + y, rounded once to the widest of their dtypes and
        `dtype`: where autocast makes outputs narrower than the stream, their sum is the stream's. None without y.

    Raises:
        UsageError: as for `attend`.
    """
    added = () if y is None else (y,)
    fused = is_fused(backend, (*sources, *added, *queries, *gains, *prior), dtype)
    if fused and not (prior or len(queries) > 1 or torch.is_grad_enabled() or is_compiling()):
        inside = norm if norm and takes_norm(norm, dtype) else None
        out, total = read_one(sources, y, queries[0], gains[0] if gains else None, eps, dtype, scale, inside)
        return (norm(out) if norm and not inside else out,), total
    alone = norm if len(queries) == 1 and not is_compiling() else None
    inside = alone if alone and fused and takes_norm(alone, dtype) else None
    total = None
    if not sources and not inside:
        outs = [(h if scale == 1.0 else scale * h).to(dtype) for h in prior[: len(queries)]]
    elif not fused:
        if y is not None:
            total = sources[-1].to(torch.promote_types(dtype, sources[-1].dtype)) + y
            sources = [*sources[:-1], total]
        outs = reference.attend(sources, queries, gains, prior, eps, dtype, scale)[0]
    else:
        of_norm = inside[:3] if inside else ()
        outs, _, sums = _attend(sources, queries, gains, prior, added, eps, scale, dtype, *of_norm)
        total = sums[0] if sums else None
    return [norm(out) for out in outs] if norm and not inside else outs, total


def read_one(
    sources: Sequence[Tensor],
    y: Tensor | None,
    query: Tensor,
    gain: Tensor | None,
    eps: float,
    dtype: torch.dtype,
    scale: float = 1.0,
    norm: Norm | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Do what `read` does for one query, where `is_fused` was asked, no gradient is kept and nothing is compiled, and
    `takes_norm` of the norm.

    For one token it takes half the time.
    """
    out, sums = library.attend_one(sources, query, gain, y, eps, scale, dtype, *(norm[:3] if norm else ()))
    return out, sums[0] if sums else None


def takes_norm(norm: Norm, dtype: torch.dtype) -> bool:
    """Whether the fused operator can normalise what one query reads: with an ordinary weight of the out's dtype."""
    return norm.weight.dtype == dtype and type(norm.weight) in (Tensor, nn.Parameter)


def _attend(
    sources: Sequence[Tensor],
    queries: Sequence[Tensor],
    gains: Sequence[Tensor],
    prior: Sequence[Tensor],
    added: Sequence[Tensor],
    eps: float,
    scale: float,
    dtype: torch.dtype,
    *norm: Any,
) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """Call the operator: its outs, lses and sums."""
    if any(x.dtype != torch.float32 for x in prior):
        before, lses_before = prior[: len(queries)], prior[len(queries) :]
        if any(x.dtype != dtype for x in before):
            before = [x.float() for x in before]
        prior = [*before, *(x.float() for x in lses_before)]
    if torch.is_grad_enabled() or is_compiling():
        return library.attend(sources, queries, gains, prior, added, eps, scale, dtype, *norm)[:3]
    with AutoDispatchBelowAutograd():  # the way through autograd costs as much again as the kernel for one token
        return library.attend(sources, queries, gains, prior, added, eps, scale, dtype, *norm)[:3]


def add_normalised(
    y: Tensor,
    total: Tensor | None = None,
    eps: float = 1e-6,
    backend: Backend = "auto",
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Add a normalised output: total + y / sqrt(mean(y^2) + eps).

    Computed in float32 (float64 for float64 input), in one pass, and rounded once. The norm has no gain.
    Source: RMS Block Attention Residuals (kimmichtank/rms-block-attnres).

    Args:
        y: [..., d], in float32, bfloat16, float16 or float64.
        total: [..., d], in any of these dtypes; zero if None.
        eps: added to the mean square; not negative.
        backend: as for `depth_attention`.
        dtype: of the result; if None the wider of total's and y's.

    Returns:
        The sum [..., d].

    Raises:
        UsageError: as for `depth_attention`.
    """
    totals = () if total is None else (total,)
    _check([y, *totals], "y and total", [], "", eps, dtype)
    if dtype is None:
        dtype = y.dtype if total is None else torch.promote_types(total.dtype, y.dtype)
    if not is_fused(backend, (y, *totals), dtype):
        return reference.add_normalised(y, total, eps, dtype)
    return _add_normalised(y, totals, (), eps, dtype)[0]


def add_both(
    y: Tensor, total: Tensor, raw: Tensor, eps: float, dtype: torch.dtype, backend: Backend = "auto"
) -> tuple[Tensor, Tensor]:
    """Add y to two sums in one pass: total + y / sqrt(mean(y^2) + eps) in `dtype`, and raw + y.

    Where raw and its sum have at least float32, they are kept for the backward pass and y is not: others keep them
    anyway. So y's gradient has the rounding of raw, too: its relative error grows as |raw| / |y|, in float32 to 1e-5 or
    so at 1e3.

    Args:
        y: as for `add_normalised`, like eps, dtype and backend. Shapes are not checked here.
        total: [..., d], of any of y's dtypes.
        raw: [..., d], of any of y's dtypes.
    """
    if not is_fused(backend, (y, total, raw), dtype):
        return reference.add_normalised(y, total, eps, dtype), raw + y
    out, sums, _ = _add_normalised(y, (total,), (raw,), eps, dtype)
    return out, sums[0]


def _add_normalised(
    y: Tensor, total: Sequence[Tensor], raw: Sequence[Tensor], eps: float, dtype: torch.dtype
) -> tuple[Tensor, list[Tensor], Tensor]:
    if torch.is_grad_enabled() or is_compiling():
        return normalised.add_normalised(y, total, raw, eps, dtype)
    with AutoDispatchBelowAutograd():
        return normalised.add_normalised(y, total, raw, eps, dtype)


def normalise(y: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return n = y / sqrt(mean(y^2) + eps) [..., d], rounded once, and 1/rms [...], in one pass and without a gradient.

    For an autograd function that recomputes n; `normalise_backward` gives its gradient.
    """
    if is_fused("auto", (y,), y.dtype):
        n, _, inverse_rms = _add_normalised(y.detach(), (), (), eps, y.dtype)
        return n, inverse_rms
    inverse_rms = reference.inverse_rms(y, eps)
    return (inverse_rms * y).to(y.dtype), inverse_rms.squeeze(-1)


def normalise_backward(grad: Tensor, y: Tensor, inverse_rms: Tensor) -> Tensor:
    """Return the gradient of y [..., d] from that of n: (grad - y mean(grad y) / rms^2) / rms."""
    if is_fused("auto", (grad, y), y.dtype):
        return normalised.add_normalised_backward(grad, (), (y,), inverse_rms, y.dtype)
    r = inverse_rms.unsqueeze(-1)
    return (r * (grad - y * r * ((grad * y).mean(-1, keepdim=True) * r))).to(y.dtype)


def _check(
    sources: Sequence[Tensor],
    name: str,
    vectors: Sequence[Tensor],
    vector_names: str,
    eps: float,
    dtype: torch.dtype | None = None,
) -> None:
    both = f"{name} and {vector_names}" if vectors else name
    if len(sources) == 0:
        raise UsageError(f"{name} must hold at least one tensor")
    for x in (sources[0], *vectors):  # one source stands for all: there are many, and this runs at every site
        if not isinstance(x, Tensor):
            raise UsageError(f"{both} must be tensors, not {type(x).__name__}")
    if dtype is not None and dtype not in reference.DTYPES:
        raise UsageError(f"dtype must be float32, bfloat16, float16 or float64, not {dtype}")
    for x in (*sources, *vectors):
        if getattr(x, "dtype", None) not in reference.DTYPES:
            given = str(x.dtype).removeprefix("torch.") if isinstance(x, Tensor) else type(x).__name__
            raise UsageError(f"{both} must be float32, bfloat16, float16 or float64, not {given}")
    if not isinstance(eps, float | int) or not eps >= 0:
        raise UsageError(f"eps must be a number of at least 0, not {eps!r}")
    shape = sources[0].shape
    if len(shape) == 0 or shape[-1] == 0 or any(x.shape != shape for x in sources):
        shapes = ", ".join(str(list(x.shape)) for x in sources)
        raise UsageError(f"{name} must all have one shape [..., d] with d of at least 1, not {shapes}")
    for vector in vectors:
        if vector.shape != shape[-1:]:
            raise UsageError(f"{vector_names} must have the sources' last size {shape[-1]}, not {list(vector.shape)}")
        if vector.device != sources[0].device:
            raise UsageError(f"{name} on {sources[0].device} cannot take {list(vector.shape)} on {vector.device}")


def _inner_dtype(sources: Sequence[Tensor]) -> torch.dtype:
    return torch.promote_types(sources[0].dtype, torch.float32)
