"""The operator behind every fused backend: `torch.ops.attnres.attend`, with fake tensors, autograd and vmap.

    outs_j, lses_j, sums, statistics = attend(
        sources, queries, gains, prior, added, eps, scale, dtype, norm, norm_eps, norm_offset
    )

    s_ji = (query_j * gain_j) . v_i / rms(v_i);   p_j = softmax_i s_j
    out_j = scale sum_i p_ji v_i;   lse_j = log sum_i exp s_ji

sources: N tensors [..., d]. queries: S vectors [d]; gains: S vectors, or none. prior: none, or for each query the out,
then for each the lse, of its attention over other sources: with scale 1, in float32 or, the outs, all of `dtype`. It is
merged as one more source of that query alone, whose score is lse. added: none, or y [..., d]: the last source is then
the sum of the last one given and y, rounded to the widest of their dtypes and `dtype`, and returned, too. outs: S
tensors [..., d] of `dtype`; lses: S float32 tensors [...]; statistics: float32 [tokens, N (S + 1)], what the backward
pass needs besides the sources. With a prior there may be no source.

On a CPU queries and gains may be [H, d / H]: H heads, each with a softmax of its own over its slice of the channels,
while 1/rms is that of all channels. Then lses are [..., H] and the statistics [tokens, N (H S + 1)].

norm: none, or the weight [d] of a norm of the one query's out: out / sqrt(mean(out^2) + norm_eps) (norm_offset + norm),
before it is rounded.

`attend_backward` takes the sources with the sum in its place, and the prior as the lses with outs, or as the lses and
then the outs of it without them, as always under a norm, whose weight's gradient comes after those of the gains.
grad_sums: none, or what reaches the last source from elsewhere, which is added to its gradient.

`attend_one` takes one query, maybe a gain and no prior, and returns the out and the sum. It has no gradient: of one
token the lists, and what they hold for a gradient, are half of a call.

Each backend registers them all for its device: the CPU kernel by being loaded, Triton by import.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from attnres.errors import UsageError
from attnres.torch_private import (
    AutoDispatchBelowAutograd,
    SingleLevelFunction,
    enable_single_level_autograd_function,
    in_forward_mode,
    tree_map,
)

library = torch.library.Library("attnres", "DEF")
library.define(
    "attend(Tensor[] sources, Tensor[] queries, Tensor[] gains, Tensor[] prior, Tensor[] added, float eps,"
    " float scale, ScalarType dtype, Tensor? norm=None, float norm_eps=0, float norm_offset=0)"
    " -> (Tensor[] outs, Tensor[] lses, Tensor[] sums, Tensor statistics)",
    tags=torch.Tag.pt2_compliant_tag,
)
library.define(
    "attend_one(Tensor[] sources, Tensor query, Tensor? gain, Tensor? added, float eps, float scale, ScalarType dtype,"
    " Tensor? norm=None, float norm_eps=0, float norm_offset=0) -> (Tensor out, Tensor[] sums)",
    tags=torch.Tag.pt2_compliant_tag,
)
library.define(
    "attend_backward(Tensor[] grad_outs, Tensor[] grad_lses, Tensor[] grad_sums, Tensor[] sources, Tensor[] queries,"
    " Tensor[] gains, Tensor[] outs, Tensor[] lses, Tensor[] prior, Tensor statistics, float scale, Tensor? norm=None,"
    " float norm_eps=0, float norm_offset=0)"
    " -> (Tensor[] grad_sources, Tensor[] grad_queries, Tensor[] grad_gains, Tensor[] grad_prior)",
    tags=torch.Tag.pt2_compliant_tag,
)


def check(
    sources: Sequence[Tensor],
    queries: Sequence[Tensor],
    gains: Sequence[Tensor],
    prior: Sequence[Tensor],
    added: Sequence[Tensor] = (),
    norm: Tensor | None = None,
) -> None:
    """Stop sizes or devices that do not fit, which would lead a kernel outside its memory.

    The CPU kernel has a check of its own: this one takes 3 us, of a call of 7 for one token.

    Raises:
        UsageError: with the shape that belongs there.
    """
    x = (*sources, *prior)[0]
    if x.ndim == 0 or x.shape[-1] == 0:
        raise UsageError("depth attention needs sources [..., d] with d of at least 1")
    if len(prior) not in (0, 2 * len(queries)):
        raise UsageError(f"a prior of depth attention over sources is {2 * len(queries)} tensors, not {len(prior)}")
    if norm is not None and len(queries) > 1:
        raise UsageError("depth attention over sources normalises what one query reads, and not several")
    if len(added) > min(1, len(sources)):
        raise UsageError(f"depth attention adds one tensor to the last of its sources, not {len(added)}")
    wanted = [(v, x.shape) for v in (*sources, *added, *prior[: len(queries)])]
    wanted += [(v, _vector_shape(x, queries)) for v in (*queries, *gains)]
    wanted += [(v, x.shape[-1:]) for v in (() if norm is None else (norm,))]
    wanted += [(v, lse_shape(x, queries)) for v in prior[len(queries) :]]
    for v, shape in wanted:
        if v.shape != shape or v.device != x.device:
            raise UsageError(
                f"depth attention over sources {list(x.shape)} on {x.device} cannot take {list(v.shape)} on {v.device} "
                f"where {list(shape)} belongs"
            )


def _vector_shape(x: Tensor, queries: Sequence[Tensor]) -> torch.Size:
    """Of a query: [d], or [H, d / H] with heads."""
    heads = queries[0].shape[:-1]
    whole = len(heads) == 1 and heads[0] > 0 and x.shape[-1] % heads[0] == 0
    return torch.Size((*heads, x.shape[-1] // heads[0])) if whole else x.shape[-1:]


def lse_shape(x: Tensor, queries: Sequence[Tensor]) -> torch.Size:
    """What a query has of each token: one number, or one for each of its heads."""
    return torch.Size((*x.shape[:-1], *queries[0].shape[:-1]))


def sums_of(
    sources: Sequence[Tensor], added: Sequence[Tensor], dtype: torch.dtype, make: Callable[..., Tensor]
) -> list[Tensor]:
    """The sums as `make(shape, dtype)` makes tensors: one if anything is added."""
    return [
        make(y.shape, dtype=torch.promote_types(torch.promote_types(sources[-1].dtype, dtype), y.dtype)) for y in added
    ]


@torch.library.register_fake("attnres::attend")
def _attend_fake(sources, queries, gains, prior, added, eps, scale, dtype, *norm):
    check(sources, queries, gains, prior, added, *norm[:1])
    x = (*sources, *prior)[0]
    tokens = x.numel() // x.shape[-1]
    outs = [x.new_empty(x.shape, dtype=dtype) for _ in queries]
    lses = [x.new_empty(lse_shape(x, queries), dtype=torch.float32) for _ in queries]
    scores = queries[0].shape[:-1].numel() * len(queries)
    statistics = x.new_empty((tokens, len(sources) * (scores + 1)), dtype=torch.float32)
    return outs, lses, sums_of(sources, added, dtype, x.new_empty), statistics


@torch.library.register_fake("attnres::attend_one")
def _attend_one_fake(sources, query, gain, added, eps, scale, dtype, *norm):
    given = [] if added is None else [added]
    check(sources, [query], [] if gain is None else [gain], (), given, *norm[:1])
    return sources[0].new_empty(sources[0].shape, dtype=dtype), sums_of(sources, given, dtype, sources[0].new_empty)


def check_backward(groups: Sequence[Sequence[Tensor]], statistics: Tensor, norm: Tensor | None = None) -> None:
    """Raises UsageError where `attend_backward`'s lists do not fit its sources, in number, sizes or devices."""
    grad_outs, grad_lses, grad_sums, sources, queries, gains, outs, lses, prior = groups
    check(sources or grad_outs, queries, gains, (), (), norm)
    x, s = (*sources, *grad_outs)[0], len(queries)
    full, per_token = x.shape, lse_shape(x, queries)
    width = len(sources) * (queries[0].shape[:-1].numel() * s + 1)
    allowed: list[tuple[Sequence[Tensor], tuple[int, ...], Sequence[int]]] = [
        (grad_outs, (s,), full),
        (grad_lses, (0, s), per_token),
        (grad_sums, (0, min(1, len(sources))), full),
        (gains, (0, s), queries[0].shape),
        (outs, (0, s if norm is None else 0), full),
        (lses, (s,), per_token),
        (prior[:s], (0, s), per_token),
        (prior[s:], (s if prior and not outs else 0,), full),
        ([statistics], (1,), (x.numel() // x.shape[-1], width)),
    ]
    for tensors, counts, shape in allowed:
        if len(tensors) not in counts or any(v.shape != torch.Size(shape) or v.device != x.device for v in tensors):
            raise UsageError(
                f"the gradient of depth attention over {len(sources)} sources {list(full)} and {s} queries cannot take "
                f"{[list(v.shape) for v in tensors]} where {' or '.join(map(str, counts))} of {list(shape)} belong"
            )


def grad_prior_outs(x: Tensor, lses: Sequence[Tensor], outs: Sequence[Tensor]) -> list[Tensor]:
    """Room for the gradients of a prior's outs: of their dtypes, and float32 where they are not given."""
    dtypes = [out.dtype for out in outs] or [torch.float32] * len(lses)
    return [x.new_empty(x.shape, dtype=dtype) for dtype in dtypes]


@torch.library.register_fake("attnres::attend_backward")
def _attend_backward_fake(
    grad_outs, grad_lses, grad_sums, sources, queries, gains, outs, lses, prior, statistics, scale, *norm
):
    weight = [x for x in norm[:1] if x is not None]
    check_backward((grad_outs, grad_lses, grad_sums, sources, queries, gains, outs, lses, prior), statistics, *weight)

    def like(tensors: Sequence[Tensor]) -> list[Tensor]:
        return [torch.empty_like(x, memory_format=torch.contiguous_format) for x in tensors]

    lses_before = prior[: len(queries)]
    grad_prior = [*grad_prior_outs(grad_outs[0], lses_before, prior[len(queries) :]), *like(lses_before)]
    return like(sources), like(queries), like([*gains, *weight]), grad_prior


PLAIN = "use backend='reference' for that, and for a connection or a model, which name none, float64 or torch.func"
"""What a message advises for derivatives that the kernels have not."""


class _Attend(SingleLevelFunction):
    """The gradient of `attend`, where the CPU's own in C++ (csrc/library.cpp) does not serve: for Triton, and under
    torch.func. `torch.library.register_autograd` would make it at five times the cost per call.

    That flattens and rebuilds the lists by pytree, forward and backward, which a small model's step feels.
    Single-level, because the dispatcher by itself comes here once for each level of `torch.func.grad`. A function's
    forward has gradients switched off; the levels below must have them on, or they lose theirs in silence.
    """

    @staticmethod
    def forward(
        ctx: Any, sizes: tuple[int, ...], rest: tuple[Any, ...], of_norm: tuple[float, ...], *tensors: Tensor
    ) -> Any:
        sources, queries, gains, norm, prior, added = _split(tensors, sizes)
        dtype = rest[-1]
        with torch.enable_grad(), AutoDispatchBelowAutograd():
            outs, lses, sums, statistics = attend(sources, queries, gains, prior, added, *rest, *norm, *of_norm)
        ctx.summands = [x.dtype for y in added for x in (sources[-1], y)]
        sources[len(sources) - len(sums) :] = sums
        # Only a merge needs its output again, and there the following norm keeps it anyway. Once rounded it no longer
        # serves: a query's gradient would lose digits without limit as the partial's weight nears 1. Once normalised it
        # is made again of the prior and the sources.
        rounded = dtype != torch.float32 or norm
        before, lses_before = prior[: len(prior) // 2], prior[len(prior) // 2 :]
        needed_outs = outs if prior and not rounded else []
        needed_prior = [*lses_before, *before] if rounded else lses_before
        saved = (sources, queries, gains, needed_outs, lses, needed_prior, [statistics], norm)
        ctx.sizes = tuple(map(len, saved))
        ctx.scale, ctx.of_norm = rest[1], of_norm
        ctx.save_for_backward(*(x for group in saved for x in group))
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(statistics)
        return *outs, *lses, *sums, statistics

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        sources, queries, gains, outs, lses, prior, (statistics,), norm = _split(ctx.saved_tensors, ctx.sizes)
        s = len(queries)
        x = (*sources, *outs, *prior[s:])[0]
        grad_outs = [x.new_zeros(x.shape) if g is None else g for g in grads[:s]]
        grad_lses: list[Tensor] = []
        if any(g is not None for g in grads[s : 2 * s]):
            grad_lses = [torch.zeros_like(lse) if g is None else g for g, lse in zip(grads[s:], lses, strict=False)]
        grad_sums = [g for g in grads[2 * s : -1] if g is not None]
        arguments = (grad_outs, grad_lses, grad_sums, sources, queries, gains, outs, lses, prior, statistics)
        of_sources, *others = attend_backward(*arguments, ctx.scale, *norm, *ctx.of_norm)
        if ctx.summands:  # both have the sum's gradient
            *of_sources, of_sum = of_sources
            of_sources = [*of_sources, of_sum.to(ctx.summands[0])]
            nearest = of_sources[-1] if ctx.summands[0] == ctx.summands[1] else of_sum
            others.append([nearest.to(ctx.summands[1])])
        return None, None, None, *of_sources, *(gradient for group in others for gradient in group)


def _attend_autograd(sources, queries, gains, prior, added, eps, scale, dtype, norm=None, *of_norm):
    groups = (sources, queries, gains, [] if norm is None else [norm], prior, added)
    tensors = [x for group in groups for x in group]
    if not (torch.is_grad_enabled() and any(x.requires_grad for x in tensors)):
        with AutoDispatchBelowAutograd():
            return attend(sources, queries, gains, prior, added, eps, scale, dtype, norm, *of_norm)
    numbers = of_norm if norm is not None else ()
    with enable_single_level_autograd_function():
        flat = _Attend.apply(tuple(map(len, groups)), (eps, scale, dtype), numbers, *tensors)  # type: ignore[attr-defined]
    s = len(queries)
    return list(flat[:s]), list(flat[s : 2 * s]), list(flat[2 * s : -1]), flat[-1]


class _AttendBackward(SingleLevelFunction):
    """`attend_backward` where its own gradient may be asked for, which does not exist."""

    @staticmethod
    def forward(ctx: Any, sizes: tuple[int, ...], rest: tuple[Any, ...], *tensors: Tensor) -> Any:
        *groups, (statistics,) = _split(tensors, sizes)
        with torch.enable_grad(), AutoDispatchBelowAutograd():
            return tuple(x for group in attend_backward(*groups, statistics, *rest) for x in group)

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        raise UsageError(f"the fused depth attention cannot be differentiated twice; {PLAIN}")


def _attend_backward_autograd(*arguments):
    groups, rest = [*arguments[:9], arguments[9:10]], arguments[10:]
    tensors = [x for group in groups for x in group]
    if in_forward_mode(*tensors):
        raise UsageError(f"the fused depth attention has no tangents of its gradients; {PLAIN}")
    if not (torch.is_grad_enabled() and any(x.requires_grad for x in tensors)):
        with AutoDispatchBelowAutograd():
            return attend_backward(*arguments)
    with enable_single_level_autograd_function():
        flat = _AttendBackward.apply(tuple(map(len, groups)), rest, *tensors)  # type: ignore[attr-defined]
    _, _, _, sources, queries, gains, _, _, prior, _ = groups
    norms = sum(x is not None for x in rest[1:2])
    return tuple(_split(flat, (len(sources), len(queries), len(gains) + norms, 2 * len(prior[: len(queries)]))))


def one_by_one(operator: Callable[..., Any]) -> Callable[..., Any]:
    """Make the rule for vmap: the operator on each member of the batch, which is right for gradients of vectors too."""

    def member(x: Any, dim: Any, index: int) -> Any:
        if isinstance(x, (list, tuple)):
            return [member(y, d, index) for y, d in zip(x, dim, strict=True)]
        if dim is None:
            return x
        return x.select(dim, index) if x.shape[dim] else x.sum(dim)  # zeros, for the shapes of an empty batch's results

    def rule(info: Any, in_dims: Any, *arguments: Any) -> Any:
        results = [operator(*member(arguments, in_dims, index)) for index in range(info.batch_size or 1)]
        stacked = tree_map(lambda *members: torch.stack(members)[: info.batch_size], *results)
        return stacked, tree_map(lambda _: 0, stacked)

    return rule


def refuse_batched_gradients(*_: Any) -> Any:
    raise UsageError(
        "the fused depth attention takes no batch of gradients at once from torch.autograd (is_grads_batched, "
        "vectorize); use torch.func.vjp and vmap, or backend='reference'"
    )


def _split(tensors: Sequence[Tensor], sizes: Sequence[int]) -> list[list[Tensor]]:
    rest = iter(tensors)
    return [[next(rest) for _ in range(size)] for size in sizes]


attend = torch.ops.attnres.attend.default
attend_one = torch.ops.attnres.attend_one.default
attend_backward = torch.ops.attnres.attend_backward.default
library.impl("attend", _attend_autograd, "Autograd")
library.impl("attend_one", torch.library.fallthrough_kernel, "Autograd")  # it has no gradient
for operator in (attend, attend_one, attend_backward):
    torch.library.register_vmap(operator, one_by_one(operator), lib=library)
library.impl("attend_backward", _attend_backward_autograd, "Autograd")
library.impl("attend_backward", refuse_batched_gradients, "Batched")
