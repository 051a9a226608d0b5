"""The Triton kernels of `attend`: one program per token forward, one per run of tokens backward.

Legend: i source (n), j query of a launch, t token; v a source's row, c a key vector, g an output's gradient times
scale, all one row of BLOCK >= D channels in registers. Sources are found through a table of addresses in the GPU's
memory, so that a kernel is compiled once for any number of them. Everything is widened to float32 on load and rounded
once on its way out.

Offsets are 64-bit from the token on. There are no atomics: each row of a gradient is written by one program, and a key
vector's gradient leaves as one partial sum per program.
"""

# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false, reportArgumentType=false
# (a kernel is not Python: Triton compiles it)

from __future__ import annotations

import triton
import triton.language as tl

MIXED = tl.constexpr(-1)


@triton.jit
def table_kernel(addresses, kinds, tensors):
    """Write the address of each tensor and its dtype: 0 float32, 1 bfloat16, 2 float16.

    Written by a kernel because a copy from the host could not be captured in a CUDA graph.
    """
    for i in tl.static_range(len(tensors)):
        tl.store(addresses + i, tensors[i].to(tl.int64, bitcast=True))
        if tensors[i].dtype.element_ty == tl.bfloat16:
            tl.store(kinds + i, 1)
        elif tensors[i].dtype.element_ty == tl.float16:
            tl.store(kinds + i, 2)
        else:
            tl.store(kinds + i, 0)


@triton.jit
def _pointer(address, dtype: tl.constexpr, ALIGNED: tl.constexpr):
    pointer = address.to(tl.pointer_type(dtype), bitcast=True)
    return tl.multiple_of(pointer, 16) if ALIGNED else pointer


@triton.jit
def _load_row(addresses, kinds, i, row, inside, KIND: tl.constexpr, ALIGNED: tl.constexpr):
    """Read the offsets `row` [BLOCK] of tensor i as float32 [BLOCK], 0 outside."""
    address = tl.load(addresses + i)
    kind = tl.load(kinds + i) if KIND == MIXED else KIND
    if kind == 1:
        v = tl.load(_pointer(address, tl.bfloat16, ALIGNED) + row, mask=inside, other=0.0).to(tl.float32)
    elif kind == 2:
        v = tl.load(_pointer(address, tl.float16, ALIGNED) + row, mask=inside, other=0.0).to(tl.float32)
    else:
        v = tl.load(_pointer(address, tl.float32, ALIGNED) + row, mask=inside, other=0.0)
    return v


@triton.jit
def _store_row(addresses, kinds, i, row, inside, v, KIND: tl.constexpr, ALIGNED: tl.constexpr):
    """Write v [BLOCK] to the offsets `row` [BLOCK] of tensor i, rounded to its dtype."""
    address = tl.load(addresses + i)
    kind = tl.load(kinds + i) if KIND == MIXED else KIND
    if kind == 1:
        tl.store(_pointer(address, tl.bfloat16, ALIGNED) + row, v.to(tl.bfloat16), mask=inside)
    elif kind == 2:
        tl.store(_pointer(address, tl.float16, ALIGNED) + row, v.to(tl.float16), mask=inside)
    else:
        tl.store(_pointer(address, tl.float32, ALIGNED) + row, v, mask=inside)


@triton.jit(do_not_specialize=["first_query", "n", "s"])
def forward_kernel(
    sources,  # [n] addresses of tensors [tokens, D]
    kinds,  # [n] their dtypes
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
    BLOCK: tl.constexpr,
    KIND: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    t = tl.program_id(0).to(tl.int64)
    channel = tl.arange(0, BLOCK)  # [BLOCK]
    inside = channel < D  # [BLOCK]
    row = t * D + channel  # [BLOCK]: the token's row in each tensor
    statistics += t * n * (s + 1)

    c, acc, top, total = (), (), (), ()  # per query: [BLOCK], [BLOCK], [], []
    for j in tl.static_range(len(outs)):
        c += (tl.load(keys + j * D + channel, mask=inside, other=0.0),)
        if len(prior_outs) > 0:
            acc += (tl.load(prior_outs[j] + row, mask=inside, other=0.0),)
            top += (tl.load(prior_lses[j] + t),)
            total += (tl.full((), 1.0, tl.float32),)
        else:
            acc += (tl.zeros([BLOCK], tl.float32),)
            top += (tl.full((), float("-inf"), tl.float32),)
            total += (tl.full((), 0.0, tl.float32),)

    for i in range(n):
        v = _load_row(sources, kinds, i, row, inside, KIND, ALIGNED)  # [BLOCK]
        r = 1.0 / tl.sqrt_rn(tl.sum(v * v) / D + eps)  # []
        tl.store(statistics + i, r)
        new_acc, new_top, new_total = (), (), ()
        for j in tl.static_range(len(outs)):
            score = tl.sum(c[j] * v) * r  # []
            tl.store(statistics + n * (first_query + j + 1) + i, score)
            higher = tl.maximum(top[j], score)
            shrink, p = tl.exp(top[j] - higher), tl.exp(score - higher)  # [], []
            new_acc += (acc[j] * shrink + p * v,)
            new_total += (total[j] * shrink + p,)
            new_top += (higher,)
        acc, top, total = new_acc, new_top, new_total

    for j in tl.static_range(len(outs)):
        tl.store(outs[j] + row, (acc[j] * (scale / total[j])).to(outs[j].dtype.element_ty), mask=inside)
        tl.store(lses[j] + t, top[j] + tl.log(total[j]))


@triton.jit(do_not_specialize=["tokens", "tokens_each", "first_query", "n", "s"])
def backward_kernel(
    sources,  # [n] addresses of tensors [tokens, D], as the next two
    grad_sources,
    previous,  # what the earlier launches' queries gave to each gradient
    kinds,  # [n]
    grad_outs,  # tuples, one tensor per query: [tokens, D]
    lses,  # [tokens]
    grad_lses,  # [tokens]; none: zero
    outs,  # D_j = grad_out_j . out_j if given, else the sum over the sources and the prior
    prior_outs,  # one per query if that sum is to be taken, else none
    prior_lses,  # none, or one per query, as the two below
    grad_prior_outs,
    grad_prior_lses,
    keys,  # [queries of this launch, D]
    partial,  # [programs, queries of this launch, D]: the gradient of keys
    statistics,  # [tokens, n (s + 1)]
    tokens,
    tokens_each,
    first_query,
    n,
    s,
    scale,
    D: tl.constexpr,
    BLOCK: tl.constexpr,
    KIND: tl.constexpr,
    GRAD_KIND: tl.constexpr,
    ALIGNED: tl.constexpr,
    ADDS: tl.constexpr,  # whether there is a `previous`
):
    program = tl.program_id(0).to(tl.int64)
    channel = tl.arange(0, BLOCK)
    inside = channel < D
    c, dc = (), ()  # per query: [BLOCK] each
    for j in tl.static_range(len(grad_outs)):
        c += (tl.load(keys + j * D + channel, mask=inside, other=0.0),)
        dc += (tl.zeros([BLOCK], tl.float32),)

    for t in range(program * tokens_each, tl.minimum((program + 1) * tokens_each, tokens)):
        row = t * D + channel  # [BLOCK]
        here = statistics + t * n * (s + 1)
        g, lse, grad_lse, mean, ds_sum = (), (), (), (), ()  # per query: [BLOCK], then [] each
        for j in tl.static_range(len(grad_outs)):
            grad_out = tl.load(grad_outs[j] + row, mask=inside, other=0.0).to(tl.float32)
            g += (grad_out * scale,)
            lse += (tl.load(lses[j] + t),)
            ds_sum += (tl.full((), 0.0, tl.float32),)
            if len(grad_lses) > 0:
                grad_lse += (tl.load(grad_lses[j] + t),)
            else:
                grad_lse += (tl.full((), 0.0, tl.float32),)
            if len(outs) > 0:
                mean += (tl.sum(grad_out * tl.load(outs[j] + row, mask=inside, other=0.0).to(tl.float32)),)
            else:
                mean += (tl.full((), 0.0, tl.float32),)

        if len(outs) == 0:
            if len(prior_outs) > 0:
                mean = ()
                for j in tl.static_range(len(prior_outs)):
                    out = tl.load(prior_outs[j] + row, mask=inside, other=0.0)  # [BLOCK]
                    mean += (tl.exp(tl.load(prior_lses[j] + t) - lse[j]) * tl.sum(g[j] * out),)
            for i in range(n):
                v = _load_row(sources, kinds, i, row, inside, KIND, ALIGNED)
                new_mean = ()
                for j in tl.static_range(len(grad_outs)):
                    p = tl.exp(tl.load(here + n * (first_query + j + 1) + i) - lse[j])
                    new_mean += (mean[j] + p * tl.sum(g[j] * v),)
                mean = new_mean

        for i in range(n):  # the rows are read again, now from the cache
            v = _load_row(sources, kinds, i, row, inside, KIND, ALIGNED)
            r = tl.load(here + i)  # []
            dv = _load_row(previous, kinds, i, row, inside, 0, ALIGNED) if ADDS else tl.zeros([BLOCK], tl.float32)
            along_v = tl.full((), 0.0, tl.float32)
            new_dc, new_sum = (), ()
            for j in tl.static_range(len(grad_outs)):
                score = tl.load(here + n * (first_query + j + 1) + i)
                p = tl.exp(score - lse[j])
                ds = p * (tl.sum(g[j] * v) - mean[j] + grad_lse[j])  # []: the score's gradient
                along_v += ds * score
                dv += p * g[j] + (ds * r) * c[j]  # [BLOCK]
                new_dc += (dc[j] + (ds * r) * v,)  # [BLOCK]
                new_sum += (ds_sum[j] + ds,)
            dc, ds_sum = new_dc, new_sum
            dv -= v * (along_v * r * r / D)
            _store_row(grad_sources, kinds, i, row, inside, dv, GRAD_KIND, ALIGNED)

        for j in tl.static_range(len(prior_lses)):
            # All the scores' gradients, the prior's included, add up to that of lse.
            tl.store(grad_prior_lses[j] + t, grad_lse[j] - ds_sum[j])
            share = tl.exp(tl.load(prior_lses[j] + t) - lse[j])
            tl.store(grad_prior_outs[j] + row, share * g[j], mask=inside)

    for j in tl.static_range(len(grad_outs)):
        tl.store(partial + (program * len(grad_outs) + j) * D + channel, dc[j], mask=inside)
