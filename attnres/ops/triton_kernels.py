"""The Triton kernels of one query: one program per token forward, one per run of tokens backward; and what all share.

Legend: i source (n), t token; v a source's row, c the key vector, g the output's gradient times scale, all one row of
BLOCK >= D channels in registers. Everything is widened to float32 on load and rounded once on its way out.

Tensors of a list come as a tuple: themselves, or one table of their addresses in the GPU's memory if they are many or
of several dtypes. So a kernel is compiled once for one source, once for up to 16 and once for more.

Offsets are 64-bit from the token on. There are no atomics: each row of a gradient is written by one program, and a key
vector's gradient leaves as one partial sum per program.
"""

# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false, reportArgumentType=false
# pyright: reportAssignmentType=false, reportAttributeAccessIssue=false, reportUnboundVariable=false
# (a kernel is not Python: Triton compiles it)

from __future__ import annotations

import triton
import triton.language as tl

INTEGERS = ["n", "s", "first_query", "queries_here", "tokens", "tokens_each", "runs"]
LISTS = ["sources", "grad_sources"]
"""Arguments for whose values nothing is compiled anew. ALIGNED says what is to be known of the lists' addresses."""


@triton.jit
def table_kernel(table, tensors):
    """Write the address and the dtype of each tensor: 0 float32, 1 bfloat16, 2 float16.

    Written by a kernel because a copy from the host could not be captured in a CUDA graph.
    """
    for i in tl.static_range(len(tensors)):
        tl.store(table + 2 * i, tensors[i].to(tl.int64, bitcast=True))
        if tensors[i].dtype.element_ty == tl.bfloat16:
            tl.store(table + 2 * i + 1, 1)
        elif tensors[i].dtype.element_ty == tl.float16:
            tl.store(table + 2 * i + 1, 2)
        else:
            tl.store(table + 2 * i + 1, 0)


@triton.jit
def _address(tensors, i):
    """The address of tensor i, or of each i of a block; after the last tensor that of any.

    One for all where there is a single tensor: Triton 3.6 fails on what `_pointer` says of a block of the same ones.
    """
    if tensors[0].dtype.element_ty == tl.int64:
        address = tl.load(tensors[0] + 2 * i)
    else:
        address = tensors[len(tensors) - 1].to(tl.int64, bitcast=True)
        for k in tl.static_range(len(tensors) - 1):
            address = tl.where(i == k, tensors[k].to(tl.int64, bitcast=True), address)
    return address


@triton.jit
def _pointer(address, dtype: tl.constexpr, ALIGNED: tl.constexpr):
    pointer = address.to(tl.pointer_type(dtype), bitcast=True)
    if ALIGNED:
        if len(address.shape) == 2:  # noqa: SIM108 (Triton decides an `if` while compiling)
            pointer = tl.multiple_of(pointer, [16, 16])
        else:
            pointer = tl.multiple_of(pointer, 16)
    return pointer


@triton.jit
def load(tensors, i, offset, inside, DTYPE: tl.constexpr, ALIGNED: tl.constexpr):
    """Read offsets of tensor i, or of each of a block of i, as stored (float32 if DTYPE is None: several)."""
    address = _address(tensors, i)
    offset += 0 * i  # a block if i is one
    if DTYPE is None:
        kind = tl.load(tensors[0] + 2 * i + 1)
        v = tl.load(_pointer(address, tl.float32, ALIGNED) + offset, mask=inside & (kind == 0), other=0.0)
        v += tl.load(_pointer(address, tl.bfloat16, ALIGNED) + offset, mask=inside & (kind == 1), other=0.0).to(
            tl.float32
        )
        v += tl.load(_pointer(address, tl.float16, ALIGNED) + offset, mask=inside & (kind == 2), other=0.0).to(
            tl.float32
        )
    else:
        v = tl.load(_pointer(address, DTYPE, ALIGNED) + offset, mask=inside, other=0.0)
    return v


@triton.jit
def store(tensors, i, offset, inside, v, DTYPE: tl.constexpr, ALIGNED: tl.constexpr):
    """Write v to offsets of tensor i, or of each of a block of i, rounded to its dtype. DTYPE None: several."""
    address = _address(tensors, i)
    offset += 0 * i
    if DTYPE is None:
        kind = tl.load(tensors[0] + 2 * i + 1)
        tl.store(_pointer(address, tl.float32, ALIGNED) + offset, v, mask=inside & (kind == 0))
        tl.store(_pointer(address, tl.bfloat16, ALIGNED) + offset, v.to(tl.bfloat16), mask=inside & (kind == 1))
        tl.store(_pointer(address, tl.float16, ALIGNED) + offset, v.to(tl.float16), mask=inside & (kind == 2))
    else:
        tl.store(_pointer(address, DTYPE, ALIGNED) + offset, v.to(DTYPE), mask=inside)


@triton.jit
def key_vector(query, gain, channel, inside):
    """query times gain, if there is one, as float32."""
    c = tl.load(query + channel, mask=inside, other=0.0).to(tl.float32)
    if len(gain) > 0:
        c *= tl.load(gain[0] + channel, mask=inside, other=0.0).to(tl.float32)
    return c


@triton.jit
def norm_factor(weight, offset, channel, inside):
    """What a norm multiplies by, [BLOCK]."""
    return offset + tl.load(weight + channel, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def fits(mean):
    """Whether a mean of squares is right: they neither overflowed nor vanished in float32. False for NaN, too."""
    return (mean > 1e-30) & (mean < float("inf"))


@triton.jit
def rescaling(mean):
    """A power of two that brings rows to where `fits` holds, given the mean of squares that does not fit."""
    return tl.where(mean < 1e-30, 2.0**80, 2.0**-80)


@triton.jit
def inverse_rms(v, squares, eps, D: tl.constexpr):
    """1 / sqrt(mean of squares + eps) of a row [BLOCK], given the sum of its squares."""
    mean = squares / D + eps
    if fits(mean):
        r = 1.0 / tl.sqrt_rn(mean)
    else:
        x = rescaling(mean)
        scaled = v * x
        r = x / tl.sqrt_rn(tl.sum(scaled * scaled) / D + eps * x * x)
    return r


@triton.jit
def _joined(v, c, statistics, i, n, eps, acc, top, total, D: tl.constexpr):
    """Let source i, whose row is v, join a softmax: the sum acc of rows, of weights total, above the score top."""
    squares, along_c = tl.split(tl.sum(tl.join(v * v, c * v), 0))  # [], []: one reduction for both
    r = inverse_rms(v, squares, eps, D)
    score = along_c * r
    tl.store(statistics + i, r)
    tl.store(statistics + n + i, score)
    higher = tl.maximum(top, score)
    shrink, p = tl.exp(top - higher), tl.exp(score - higher)
    return acc * shrink + p * v, higher, total * shrink + p


@triton.jit(do_not_specialize=INTEGERS, do_not_specialize_on_alignment=LISTS)
def forward_kernel(
    sources,  # n tensors [tokens, D]
    query,  # [D]
    gain,  # a tuple: [D], or none
    out,  # [tokens, D]
    lse,  # [tokens]
    prior_out,  # the same two as tuples, or none
    prior_lse,
    added,  # a tuple: what is added to the last source, [tokens, D], or none; and where the sum goes
    sums,
    norm,  # a tuple: the weight [D] of the out's norm, or none
    statistics,  # [tokens, 2 n]: n times 1/rms, then n scores
    n,
    eps,
    scale,
    norm_eps,
    norm_offset,
    D: tl.constexpr,
    BLOCK: tl.constexpr,
    DTYPE: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    t = tl.program_id(0).to(tl.int64)
    channel = tl.arange(0, BLOCK)  # [BLOCK]
    inside = channel < D  # [BLOCK]
    row = t * D + channel  # [BLOCK]: the token's row in each tensor
    statistics += t * 2 * n
    c = key_vector(query, gain, channel, inside)  # [BLOCK]
    if len(prior_out) > 0:
        acc = tl.load(prior_out[0] + row, mask=inside, other=0.0).to(tl.float32)  # [BLOCK]
        top = tl.load(prior_lse[0] + t)  # []
        total = tl.full((), 1.0, tl.float32)  # []
    else:
        acc = tl.zeros([BLOCK], tl.float32)
        top = tl.full((), float("-inf"), tl.float32)
        total = tl.full((), 0.0, tl.float32)

    if len(added) > 0:
        grown = load(sources, n - 1, row, inside, DTYPE, ALIGNED).to(tl.float32)  # [BLOCK]
        grown += tl.load(added[0] + row, mask=inside, other=0.0).to(tl.float32)
        stored = grown.to(sums[0].dtype.element_ty)
        tl.store(sums[0] + row, stored, mask=inside)
        acc, top, total = _joined(stored.to(tl.float32), c, statistics, n - 1, n, eps, acc, top, total, D)

    rest = n - len(added)
    following = load(sources, 0, row, inside & (rest > 0), DTYPE, ALIGNED)  # [BLOCK]
    for i in range(rest):
        v = following.to(tl.float32)
        following = load(sources, i + 1, row, inside & (i + 1 < rest), DTYPE, ALIGNED)  # on its way while v is used
        acc, top, total = _joined(v, c, statistics, i, n, eps, acc, top, total, D)

    h = acc * (scale / total)
    if len(norm) > 0:
        h *= inverse_rms(h, tl.sum(h * h), norm_eps, D) * norm_factor(norm[0], norm_offset, channel, inside)
    tl.store(out + row, h.to(out.dtype.element_ty), mask=inside)
    tl.store(lse + t, top + tl.log(total))


@triton.jit
def _read_again(
    sources, prior_out, prior_lse, scores, top, scale, n, t, row, inside, DTYPE, ALIGNED, STAGES: tl.constexpr
):
    """What a token read, [BLOCK], before its norm: of the sources and the prior. The shares are divided as in `_mean`.

    The next row is asked for while one is used, but for a single source: `load` fails on its next.
    """
    AHEAD: tl.constexpr = STAGES == 1 and (len(sources) > 1 or sources[0].dtype.element_ty == tl.int64)
    h = tl.zeros([row.shape[0]], tl.float32)
    shares = tl.full((), 0.0, tl.float32)
    if len(prior_out) > 0:
        shares = tl.exp(tl.load(prior_lse[0] + t) - top)
        h += shares * tl.load(prior_out[0] + row, mask=inside, other=0.0).to(tl.float32)
    if AHEAD:
        following = load(sources, 0, row, inside, DTYPE, ALIGNED)
    for i in tl.range(n, num_stages=STAGES):
        if AHEAD:
            v = following.to(tl.float32)
            following = load(sources, i + 1, row, inside & (i + 1 < n), DTYPE, ALIGNED)
        else:
            v = load(sources, i, row, inside, DTYPE, ALIGNED).to(tl.float32)
        p = tl.exp(tl.load(scores + i) - top)
        h += p * v
        shares += p
    return h * (scale / shares)


@triton.jit
def _mean(sources, out, prior_out, prior_lse, scores, along, g, top, scale, n, t, row, inside, DTYPE, ALIGNED, STAGES):
    """The mean over the softmax of the products of rows and gradient g: by the output if given, else by each row.

    Each row's product is then left in `along`. The shares are divided by their sum: a large lse is rounded by so much
    that they miss one by more than what is left of a gradient where one of them takes nearly all.
    """
    if len(out) > 0:
        mean = tl.sum(g * tl.load(out[0] + row, mask=inside, other=0.0).to(tl.float32))
    else:
        mean = tl.full((), 0.0, tl.float32)
        shares = tl.full((), 0.0, tl.float32)
        if len(prior_out) > 0:
            before = tl.load(prior_out[0] + row, mask=inside, other=0.0).to(tl.float32)
            shares = tl.exp(tl.load(prior_lse[0] + t) - top)
            mean = shares * tl.sum(g * before)
        AHEAD: tl.constexpr = STAGES == 1 and (len(sources) > 1 or sources[0].dtype.element_ty == tl.int64)
        if AHEAD:
            following = load(sources, 0, row, inside, DTYPE, ALIGNED)  # [BLOCK]
        for i in tl.range(n, num_stages=STAGES):
            if AHEAD:
                v = following.to(tl.float32)
                following = load(sources, i + 1, row, inside & (i + 1 < n), DTYPE, ALIGNED)  # on its way meanwhile
            else:
                v = load(sources, i, row, inside, DTYPE, ALIGNED).to(tl.float32)
            along_g = tl.sum(g * v)
            tl.store(along[0] + t * n + i, along_g)
            p = tl.exp(tl.load(scores + i) - top)
            mean += p * along_g
            shares += p
        mean *= scale / shares
        tl.debug_barrier()  # what follows is read by other threads than wrote it
    return mean


@triton.jit(do_not_specialize=INTEGERS, do_not_specialize_on_alignment=LISTS)
def backward_kernel(
    sources,  # n tensors [tokens, D], as the next
    grad_sources,
    query,  # [D]
    gain,  # a tuple: [D], or none
    grad_out,  # [tokens, D]
    lse,  # [tokens]
    grad_lse,  # tuples from here on. [tokens]; none: zero
    grad_sum,  # [tokens, D], added to the last source's gradient; or none
    out,  # D = grad_out . out if given, else the sum over the sources and the prior, but under a norm
    along,  # [tokens, n] if that sum is to be taken: room for the products of g and the sources
    prior_out,  # given if that sum is to be taken
    prior_lse,  # none without a prior, as the two below
    grad_prior_out,
    grad_prior_lse,
    norm,  # the weight [D] of the out's norm, or none; under one there is no out
    partial,  # [programs, 1 or 2, D]: the gradient of the key vector, and of the norm's weight
    statistics,  # [tokens, 2 n]
    tokens,
    tokens_each,
    n,
    scale,
    norm_eps,
    norm_offset,
    D: tl.constexpr,
    BLOCK: tl.constexpr,
    DTYPE: tl.constexpr,
    ALIGNED: tl.constexpr,
    STAGES: tl.constexpr,  # rows on their way in the first pass; 1: the next one
):
    program = tl.program_id(0).to(tl.int64)
    channel = tl.arange(0, BLOCK)
    inside = channel < D
    if len(norm) == 0:
        c = key_vector(query, gain, channel, inside)  # [BLOCK]
    dc = tl.zeros([BLOCK], tl.float32)
    first = program * tokens_each
    partial += program * (1 + len(norm)) * D + channel  # [BLOCK]
    for t in range(first, tl.minimum(first + tokens_each, tokens)):
        row = t * D + channel  # [BLOCK]
        here = statistics + t * 2 * n
        g = tl.load(grad_out + row, mask=inside, other=0.0).to(tl.float32)  # [BLOCK]
        top = tl.load(lse + t)  # []
        grad_top = tl.full((), 0.0, tl.float32)
        if len(grad_lse) > 0:
            grad_top = tl.load(grad_lse[0] + t)
        scores = here + n
        if len(norm) > 0:
            h = _read_again(
                sources, prior_out, prior_lse, scores, top, scale, n, t, row, inside, DTYPE, ALIGNED, STAGES
            )
            r = inverse_rms(h, tl.sum(h * h), norm_eps, D)
            g *= r * norm_factor(norm[0], norm_offset, channel, inside)
            g -= h * r * (tl.sum(g * (h * r)) / D)
            mean = tl.sum(g * h)  # a pass less, and in float32 1e-4 of a query's gradient where a share is 0.999
            # In memory, and what is loaded again, because a row more in registers would be spilled.
            of_weight = tl.load(partial + D, mask=inside & (t > first), other=0.0)
            of_weight += tl.load(grad_out + row, mask=inside, other=0.0).to(tl.float32) * (h * r)
            tl.store(partial + D, of_weight, mask=inside)
            tl.debug_barrier()  # the next token's may be read by other threads
            c = key_vector(query, gain, channel, inside)
        else:
            mean = _mean(
                sources,
                out,
                prior_out,
                prior_lse,
                scores,
                along,
                g,
                top,
                scale,
                n,
                t,
                row,
                inside,
                DTYPE,
                ALIGNED,
                STAGES,
            )
        g *= scale

        ds_sum = tl.full((), 0.0, tl.float32)
        for i in range(n):  # the rows are read again, now from the cache
            v = load(sources, i, row, inside, DTYPE, ALIGNED).to(tl.float32)
            r, score = tl.load(here + i), tl.load(scores + i)  # [], []
            p = tl.exp(score - top)
            if len(along) > 0:  # noqa: SIM108 (Triton decides an `if` while compiling)
                along_g = scale * tl.load(along[0] + t * n + i)  # []: g is times scale by now
            else:
                along_g = tl.sum(g * v)
            ds = p * (along_g - mean + grad_top)  # []: the score's gradient
            ds_sum += ds
            slope = ds * r
            dc += slope * v
            dv = p * g + slope * (c - v * (score * r / D))  # [BLOCK]
            if len(grad_sum) > 0:
                dv += tl.load(grad_sum[0] + row, mask=inside & (i == n - 1), other=0.0).to(tl.float32)
            store(grad_sources, i, row, inside, dv, DTYPE, ALIGNED)

        if len(prior_lse) > 0:
            # All the scores' gradients, the prior's included, add up to that of lse.
            tl.store(grad_prior_lse[0] + t, grad_top - ds_sum)
            share = tl.exp(tl.load(prior_lse[0] + t) - top)
            tl.store(grad_prior_out[0] + row, (share * g).to(grad_prior_out[0].dtype.element_ty), mask=inside)
    tl.store(partial, dc, mask=inside)


@triton.jit(do_not_specialize=INTEGERS)
def parameters_kernel(
    partial,  # [runs, s, D]: parts of the gradients of the key vectors, and of a norm's weight, without a gain
    queries,  # tuples of s tensors [D], gains and theirs or none
    gains,
    grad_queries,
    grad_gains,
    runs,
    D: tl.constexpr,
    RUNS: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    """Add up the parts, and make of a key vector's gradient those of its query and gain."""
    channel = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)  # [CHANNELS]
    inside = channel < D
    for j in tl.static_range(len(queries)):
        if tl.program_id(1) == j:
            parts = tl.zeros([RUNS, CHANNELS], tl.float32)
            for first in range(0, runs, RUNS):
                run = first + tl.arange(0, RUNS)[:, None]  # [RUNS, 1]
                at = (run * len(queries) + j) * D + channel[None, :]
                parts += tl.load(partial + at, mask=(run < runs) & inside[None, :], other=0.0)
            grad = tl.sum(parts, 0)  # [CHANNELS]
            grad_query = grad
            if j < len(gains):
                query = tl.load(queries[j] + channel, mask=inside, other=0.0).to(tl.float32)
                tl.store(grad_gains[j] + channel, (grad * query).to(grad_gains[j].dtype.element_ty), mask=inside)
                grad_query = grad * tl.load(gains[j] + channel, mask=inside, other=0.0).to(tl.float32)
            tl.store(grad_queries[j] + channel, grad_query.to(grad_queries[j].dtype.element_ty), mask=inside)
