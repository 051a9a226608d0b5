"""The Triton kernels of several queries: a token's sources [ROWS, d] against the queries [d, QUERIES] on tensor cores.

Legend: i source (n), j query (S), t token; v rows of sources, c the key vectors, g the outputs' gradients times scale,
all of one tile of CHANNELS channels, so that registers bound neither channels nor queries. Blocks are padded: ROWS
sources at a time, QUERIES >= S. A program takes one token and reads its rows twice, from the caches the second time:
for the scores, which need all channels, and for the sums.
"""

# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false, reportArgumentType=false
# (a kernel is not Python: Triton compiles it)

from __future__ import annotations

import triton
import triton.language as tl

from attnres.ops.triton_kernels import INTEGERS, LISTS, fits, load, rescaling, store

ROWS = tl.constexpr(16)


@triton.jit
def _product(v, x, acc):
    """v x + acc for v as stored and x in float32, right to 1e-6.

    A bfloat16 v is multiplied by three bfloat16 that add up to x; the rest goes by pairs of tf32.
    """
    if v.dtype == tl.bfloat16:
        high = x.to(tl.bfloat16)
        rest = x - high.to(tl.float32)
        middle = rest.to(tl.bfloat16)
        low = (rest - middle.to(tl.float32)).to(tl.bfloat16)
        acc = tl.dot(v, low, acc)
        acc = tl.dot(v, middle, acc)
        acc = tl.dot(v, high, acc)
    else:
        acc = tl.dot(v.to(tl.float32), x, acc, input_precision="tf32x3")
    return acc


@triton.jit
def _stop(sources, n):
    """Where loops over the sources end. Known to the compiler where the sources are arguments: at most ROWS of them."""
    return n if sources[0].dtype.element_ty == tl.int64 else ROWS


@triton.jit
def keys_kernel(queries, gains, keys, D: tl.constexpr, CHANNELS: tl.constexpr):
    """Write the key vectors [S, D]: queries times gains, if there are any. Tuples of tensors [D]."""
    channel = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    inside = channel < D
    for j in tl.static_range(len(queries)):
        c = tl.load(queries[j] + channel, mask=inside, other=0.0).to(tl.float32)
        if len(gains) > 0:
            c *= tl.load(gains[j] + channel, mask=inside, other=0.0).to(tl.float32)
        tl.store(keys + j * D + channel, c, mask=inside)


@triton.jit
def _scores(sources, keys, i, t, j, real, n, eps, D: tl.constexpr, CHANNELS: tl.constexpr, DTYPE, ALIGNED):
    """1/rms of the sources i, [ROWS], and their scores, [ROWS, QUERIES]."""
    squares = tl.zeros([ROWS, CHANNELS], tl.float32)
    along_c = tl.zeros([ROWS, j.shape[0]], tl.float32)
    for start in range(0, D, CHANNELS):
        channel = start + tl.arange(0, CHANNELS)[None, :]  # [1, CHANNELS]
        v = load(sources, i[:, None], t * D + channel, (i[:, None] < n) & (channel < D), DTYPE, ALIGNED)
        c = tl.load(keys + j[:, None] * D + channel, mask=real[:, None] & (channel < D), other=0.0)
        wide = v.to(tl.float32)
        squares += wide * wide
        along_c = _product(v, tl.trans(c), along_c)
    mean = tl.sum(squares, 1) / D + eps  # [ROWS]
    r = 1.0 / tl.sqrt_rn(mean)
    if tl.min((fits(mean) | (i >= n)).to(tl.int32)) == 0:
        x = tl.where(fits(mean), 1.0, rescaling(mean))
        squares = tl.zeros([ROWS, CHANNELS], tl.float32)
        for start in range(0, D, CHANNELS):
            channel = start + tl.arange(0, CHANNELS)[None, :]
            v = load(sources, i[:, None], t * D + channel, (i[:, None] < n) & (channel < D), DTYPE, ALIGNED)
            scaled = v.to(tl.float32) * x[:, None]
            squares += scaled * scaled
        r = x / tl.sqrt_rn(tl.sum(squares, 1) / D + eps * x * x)
    return r, along_c * r[:, None]


@triton.jit(do_not_specialize=INTEGERS, do_not_specialize_on_alignment=LISTS)
def forward_kernel(
    sources,  # n tensors [tokens, D]
    keys,  # [queries of this launch, D]
    outs,  # tuples, one tensor per query: [tokens, D]
    lses,  # [tokens]
    prior_outs,  # the same two, or none
    prior_lses,
    statistics,  # [tokens, n (s + 1)]: n times 1/rms, then n scores of each query
    first_query,  # of this launch, out of s
    n,
    s,
    eps,
    scale,
    D: tl.constexpr,
    CHANNELS: tl.constexpr,
    QUERIES: tl.constexpr,
    DTYPE: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    t = tl.program_id(0).to(tl.int64)
    j = tl.arange(0, QUERIES)  # [QUERIES]
    real = j < len(outs)  # [QUERIES]
    statistics += t * n * (s + 1)
    scores = (statistics + n * (first_query + 1 + j))[None, :]  # [1, QUERIES]: of source 0
    if len(prior_lses) > 0:
        top = load(prior_lses, j, t, real, tl.float32, False)  # [QUERIES]
        total = tl.full([QUERIES], 1.0, tl.float32)
    else:
        top = tl.full([QUERIES], float("-inf"), tl.float32)
        total = tl.zeros([QUERIES], tl.float32)

    for first in range(0, _stop(sources, n), ROWS):
        i = first + tl.arange(0, ROWS)  # [ROWS]
        r, score = _scores(sources, keys, i, t, j, real, n, eps, D, CHANNELS, DTYPE, ALIGNED)
        tl.store(statistics + i, r, mask=i < n)
        tl.store(scores + i[:, None], score, mask=(i[:, None] < n) & real[None, :])
        score = tl.where(i[:, None] < n, score, float("-inf"))
        higher = tl.maximum(top, tl.max(score, 0))
        total = total * tl.exp(top - higher) + tl.sum(tl.exp(score - higher[None, :]), 0)
        top = higher
    lse = top + tl.log(total)  # [QUERIES]
    store(lses, j, t, real, lse, tl.float32, False)

    tl.debug_barrier()  # the scores are read again, by other threads
    for start in range(0, D, CHANNELS):
        channel = start + tl.arange(0, CHANNELS)  # [CHANNELS]
        row = t * D + channel
        inside = (channel < D)[:, None] & real[None, :]  # [CHANNELS, QUERIES]
        acc = tl.zeros([CHANNELS, QUERIES], tl.float32)
        if len(prior_outs) > 0:
            share = tl.exp(load(prior_lses, j, t, real, tl.float32, False) - lse)  # [QUERIES]
            before = load(prior_outs, j[None, :], row[:, None], inside, prior_outs[0].dtype.element_ty, ALIGNED)
            acc += share[None, :] * before.to(tl.float32)
        for first in range(0, _stop(sources, n), ROWS):
            i = first + tl.arange(0, ROWS)[:, None]  # [ROWS, 1]
            v = load(sources, i, row[None, :], (i < n) & (channel < D)[None, :], DTYPE, ALIGNED)  # [ROWS, CHANNELS]
            score = tl.load(scores + i, mask=(i < n) & real[None, :], other=float("-inf"))
            acc = _product(tl.trans(v), tl.exp(score - lse[None, :]), acc)
        store(outs, j[None, :], row[:, None], inside, scale * acc, outs[0].dtype.element_ty, ALIGNED)


@triton.jit
def _along(tensors, others, t, j, real, D: tl.constexpr, CHANNELS: tl.constexpr, ALIGNED):
    """The products of each query's rows of two lists, [QUERIES]."""
    products = tl.zeros([j.shape[0], CHANNELS], tl.float32)
    for start in range(0, D, CHANNELS):
        channel = start + tl.arange(0, CHANNELS)[None, :]
        inside = real[:, None] & (channel < D)
        one = load(tensors, j[:, None], t * D + channel, inside, tensors[0].dtype.element_ty, ALIGNED)
        other = load(others, j[:, None], t * D + channel, inside, others[0].dtype.element_ty, ALIGNED)
        products += one.to(tl.float32) * other.to(tl.float32)
    return tl.sum(products, 1)


@triton.jit
def _along_g(sources, grad_outs, i, t, j, real, n, scale, D: tl.constexpr, CHANNELS: tl.constexpr, DTYPE, ALIGNED):
    """The products of the sources i [ROWS, 1] and the queries' gradients, [ROWS, QUERIES]."""
    GIVEN: tl.constexpr = grad_outs[0].dtype.element_ty
    along_g = tl.zeros([ROWS, j.shape[0]], tl.float32)
    for start in range(0, D, CHANNELS):
        channel = start + tl.arange(0, CHANNELS)[None, :]
        row = t * D + channel
        v = load(sources, i, row, (i < n) & (channel < D), DTYPE, ALIGNED)
        g = load(grad_outs, j[:, None], row, real[:, None] & (channel < D), GIVEN, ALIGNED).to(tl.float32)
        along_g = _product(v, tl.trans(scale * g), along_g)
    return along_g


@triton.jit
def _slopes(statistics, scores, slopes, along, i, real, n, lse, mean, grad_lse, D: tl.constexpr):
    """Make of the products along the sources i [ROWS] what their gradients take of r v and of each c.

    Returns the sums of the scores' gradients, [QUERIES].
    """
    there = (i[:, None] < n) & real[None, :]
    r = tl.load(statistics + i, mask=i < n, other=0.0)  # [ROWS]
    score = tl.load(scores + i[:, None], mask=there, other=float("-inf"))
    p = tl.exp(score - lse[None, :])  # [ROWS, QUERIES]
    ds = p * (tl.load(along + i[:, None], mask=there, other=0.0) - mean[None, :] + grad_lse[None, :])
    tl.store(along + i[:, None], ds * r[:, None], mask=there)
    along_v = tl.sum(ds * tl.where(there, score, 0.0), 1)  # [ROWS]
    tl.store(slopes + i, -along_v * r / D, mask=i < n)  # of r v: float32 cannot hold every r^2
    return tl.sum(ds, 0)


@triton.jit(do_not_specialize=INTEGERS, do_not_specialize_on_alignment=LISTS)
def backward_kernel(
    sources,  # n tensors [tokens, D], as the next
    grad_sources,
    keys,  # [queries of this launch, D]
    grad_outs,  # tuples, one tensor per query: [tokens, D]
    lses,  # [tokens]
    grad_lses,  # [tokens]; none: zero
    outs,  # D_j = grad_out_j . out_j if given, else the sum over the sources and the prior
    prior_outs,  # given if that sum is to be taken
    prior_lses,  # none without a prior, as the two below
    grad_prior_outs,
    grad_prior_lses,
    statistics,  # [tokens, n (s + 1)]
    slopes,  # [tokens, n (queries + 1)]: what r v, then what each c, is multiplied by in the gradient of its source
    first_query,
    n,
    s,
    scale,
    D: tl.constexpr,
    CHANNELS: tl.constexpr,
    QUERIES: tl.constexpr,
    DTYPE: tl.constexpr,
    GRAD_DTYPE: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    t = tl.program_id(0).to(tl.int64)
    j = tl.arange(0, QUERIES)  # [QUERIES]
    real = j < len(lses)  # [QUERIES]
    statistics += t * n * (s + 1)
    slopes += t * n * (len(lses) + 1)
    scores = (statistics + n * (first_query + 1 + j))[None, :]  # [1, QUERIES]: of source 0
    along = (slopes + n * (1 + j))[None, :]  # [1, QUERIES]: of source 0
    lse = load(lses, j, t, real, tl.float32, False)
    mean = tl.zeros([QUERIES], tl.float32)
    total = tl.where(real, 0.0, 1.0)  # [QUERIES]: the sum of the shares, as in triton_kernels._mean
    if len(outs) > 0:
        mean = _along(grad_outs, outs, t, j, real, D, CHANNELS, ALIGNED)
    elif len(prior_outs) > 0:
        share = tl.exp(load(prior_lses, j, t, real, tl.float32, False) - lse)
        mean = scale * share * _along(grad_outs, prior_outs, t, j, real, D, CHANNELS, ALIGNED)
        total += tl.where(real, share, 0.0)

    for first in range(0, _stop(sources, n), ROWS):
        i = first + tl.arange(0, ROWS)[:, None]  # [ROWS, 1]
        there = (i < n) & real[None, :]  # [ROWS, QUERIES]
        along_g = _along_g(sources, grad_outs, i, t, j, real, n, scale, D, CHANNELS, DTYPE, ALIGNED)
        tl.store(along + i, along_g, mask=there)
        if len(outs) == 0:
            p = tl.exp(tl.load(scores + i, mask=there, other=float("-inf")) - lse[None, :])
            mean += tl.sum(p * along_g, 0)
            total += tl.sum(p, 0)
    if len(outs) == 0:
        mean /= total

    tl.debug_barrier()  # what follows is read by other threads than wrote it, as below
    ds_sum = tl.zeros([QUERIES], tl.float32)
    grad_lse = tl.zeros([QUERIES], tl.float32)
    if len(grad_lses) > 0:
        grad_lse = load(grad_lses, j, t, real, tl.float32, False)
    for first in range(0, _stop(sources, n), ROWS):
        i = first + tl.arange(0, ROWS)  # [ROWS]
        ds_sum += _slopes(statistics, scores, slopes, along, i, real, n, lse, mean, grad_lse, D)
    if len(prior_lses) > 0:
        # All the scores' gradients, the prior's included, add up to that of lse.
        store(grad_prior_lses, j, t, real, grad_lse - ds_sum, tl.float32, False)

    tl.debug_barrier()
    for start in range(0, D, CHANNELS):
        channel = start + tl.arange(0, CHANNELS)[None, :]
        row = t * D + channel
        inside = real[:, None] & (channel < D)
        g = load(grad_outs, j[:, None], row, inside, grad_outs[0].dtype.element_ty, ALIGNED)
        g = scale * g.to(tl.float32)  # [QUERIES, CHANNELS]
        c = tl.load(keys + j[:, None] * D + channel, mask=inside, other=0.0)  # [QUERIES, CHANNELS]
        if len(prior_lses) > 0:
            share = tl.exp(load(prior_lses, j, t, real, tl.float32, False) - lse)
            PRIOR: tl.constexpr = grad_prior_outs[0].dtype.element_ty
            store(grad_prior_outs, j[:, None], row, inside, share[:, None] * g, PRIOR, ALIGNED)
        # One product for both: a weight and a slope, a gradient and a key vector for each query in turn.
        rows = tl.join(g, c).permute(0, 2, 1).reshape(2 * QUERIES, CHANNELS)
        for first in range(0, _stop(sources, n), ROWS):
            i = first + tl.arange(0, ROWS)[:, None]
            there = (i < n) & real[None, :]
            v = load(sources, i, row, (i < n) & (channel < D), DTYPE, ALIGNED).to(tl.float32)
            dv = v * tl.load(statistics + i, mask=i < n, other=0.0) * tl.load(slopes + i, mask=i < n, other=0.0)
            p = tl.exp(tl.load(scores + i, mask=there, other=float("-inf")) - lse[None, :])
            shares = tl.join(p, tl.load(along + i, mask=there, other=0.0)).reshape(ROWS, 2 * QUERIES)
            dv = tl.dot(shares, rows, dv, input_precision="tf32x3")
            store(grad_sources, i, row, (i < n) & (channel < D), dv, GRAD_DTYPE, ALIGNED)


@triton.jit(do_not_specialize=INTEGERS, do_not_specialize_on_alignment=LISTS)
def key_gradients_kernel(
    sources,  # n tensors [tokens, D]
    slopes,  # [tokens, n (queries_here + 1)]
    partial,  # [runs, s, D]: this launch's queries from first_query on
    tokens,
    tokens_each,
    first_query,
    n,
    s,
    queries_here,
    D: tl.constexpr,
    CHANNELS: tl.constexpr,
    QUERIES: tl.constexpr,
    DTYPE: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    """Add up what a run of tokens gives to the gradients of the key vectors, for one tile of channels."""
    run = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)  # [CHANNELS]
    j = tl.arange(0, QUERIES)[None, :]  # [1, QUERIES]
    dc = tl.zeros([CHANNELS, QUERIES], tl.float32)
    for t in range(run * tokens_each, tl.minimum((run + 1) * tokens_each, tokens)):
        for first in range(0, _stop(sources, n), ROWS):
            i = first + tl.arange(0, ROWS)[:, None]  # [ROWS, 1]
            inside = (i < n) & (channel < D)[None, :]
            v = load(sources, i, t * D + channel[None, :], inside, DTYPE, ALIGNED)  # [ROWS, CHANNELS]
            at = slopes + (t * (queries_here + 1) + 1 + j) * n + i  # [ROWS, QUERIES]
            along = tl.load(at, mask=(i < n) & (j < queries_here), other=0.0)
            dc = _product(tl.trans(v), along, dc)
    at = (run * s + first_query + j) * D + channel[:, None]
    tl.store(partial + at, dc, mask=(channel < D)[:, None] & (j < queries_here))
