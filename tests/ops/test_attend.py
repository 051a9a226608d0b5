"""The operators of depth attention, forward and backward, against their definition in float64."""

from __future__ import annotations

import pytest
import torch

from attnres.ops import Norm, attend, attend_blocks, merge_partial, read
from tests.ops.cases import (
    BF16,
    EPS,
    F32,
    HUGE_AND_TINY,
    Call,
    assert_right,
    assert_right_at,
    in_double,
    make_sources,
    make_vector,
    plain,
    plain_scores,
    value_and_gradients,
)

BOTH = {
    "shorter than a vector": Call(3),
    "two dtypes": Call(5, 1, 33, dtypes=(BF16, F32), vectors=BF16, out=BF16),
    "no gains": Call(4, 2, 8, gains=False),
    "four queries": Call(5, 4, 21, tokens=(2, 3)),
    "a merge": Call(1, 1, 37, dtypes=(BF16,), prior=F32, out=BF16),
    "several merges": Call(2, 2, 37, prior=F32, scale=1.7),
    "a sum and a merge": Call(1, 1, 37, prior=F32, added=F32, scale=1.7),
}
KERNEL = {
    # Rows that fill whole vectors, several at once, and leave a tail, at every width of a vector; and none that do.
    "vectors and a tail": Call(5, dim=87, tokens=(2, 3)),
    "one channel": Call(3, dim=1),
    "whole vectors": Call(3, dim=64, tokens=()),
    # Scores that fill whole vectors and do not.
    "16 sources": Call(16, 2, 8, tokens=(5,)),
    "64 and one": Call(65, 3, 20, tokens=(3,)),
    # More tokens than there are partial sums, and than one partial sum has.
    "4200 tokens": Call(2, dim=3, tokens=(4200,)),
    "two dtypes, float32 first": Call(18, 3, 40, tokens=(2,), dtypes=(F32, BF16)),
    # Queries go four at once, with the sources' squares as one more.
    **{f"{s} queries": Call(3, s, 21, tokens=(3,)) for s in (7, 9)},
    "several merges in bfloat16": Call(2, 3, 37, dtypes=(BF16,), prior=BF16, scale=1.7, out=BF16),
    "a sum in bfloat16": Call(6, 2, 37, dtypes=(BF16,), added=BF16, out=BF16),
    "a sum that widens, and merges": Call(1, 3, 37, dtypes=(BF16,), prior=F32, added=F32, out=BF16),
    "a float32 sum of bfloat16": Call(3, 1, 37, added=BF16, scale=1.7),
    # A head's slice fills no vector, fills one, and has a tail.
    "heads": Call(5, 1, 24, tokens=(3, 5), heads=4),
    "heads of one channel": Call(3, 2, 7, heads=7),
    "eight heads": Call(9, 1, 72, dtypes=(BF16,), out=BF16, heads=8),
    "a head": Call(2, 1, 5, heads=1),
    "heads of three queries, in bfloat16": Call(18, 3, 76, dtypes=(BF16, F32), vectors=BF16, out=BF16, heads=4),
    "heads of a sum that merge": Call(1, 1, 40, prior=F32, added=F32, scale=1.7, heads=2),
    "heads that merge under a norm": Call(2, 1, 40, dtypes=(BF16,), prior=BF16, out=BF16, norm=0.0, heads=2),
    "heads of several, in bfloat16, that merge": Call(2, 3, 66, dtypes=(BF16,), prior=BF16, out=BF16, heads=2),
    "no tokens of heads": Call(2, 2, 8, tokens=(0,), prior=F32, heads=2),
    "a sum that is wider than what it is of": Call(1, 1, 37, dtypes=(BF16,), prior=F32, added=BF16),
}


@pytest.mark.parametrize("call", BOTH.values(), ids=BOTH)
def test_values_and_gradients(backend, call):
    # autograd rounds each part of a source's gradient to its dtype and their sum, and parts are larger than the sum
    assert_right(call.operator(backend), call.exact, *call.inputs(), roundings=1 if backend == "cpu" else 6)


@pytest.mark.parametrize("call", KERNEL.values(), ids=KERNEL)
def test_values_and_gradients_of_the_kernel(kernel, call):
    inputs = call.inputs()
    # A key of one channel is 1 or -1 but for eps, so that the terms of its gradient cancel.
    size = sum(float(x.double().norm()) for x in inputs) if call.dim == 1 else 0.0
    assert_right(call.operator("cpu"), call.exact, *inputs, cancelling=size)


NORMED = {
    "a read": Call(5, 1, 37, norm=0.0),
    "a sum, scaled, no gain": Call(3, 1, 87, tokens=(2, 3), gains=False, added=F32, scale=1.7, norm=1.0),
    "a sum and a merge": Call(1, 1, 64, tokens=(70,), prior=F32, added=F32, scale=1.7, norm=0.0),
    "a prior alone": Call(0, 1, 33, prior=F32, scale=1.7, norm=1.0),
    "in bfloat16": Call(2, 1, 37, dtypes=(BF16,), vectors=BF16, prior=F32, added=BF16, out=BF16, norm=0.0),
    "a bfloat16 prior alone": Call(0, 1, 8, prior=BF16, out=BF16, norm=0.0),
    "one channel": Call(2, 1, 1, tokens=(5,), norm=0.0),
    "heads": Call(3, 1, 24, added=F32, scale=1.7, norm=1.0, heads=4),
    "heads of a prior alone": Call(0, 1, 12, prior=F32, norm=0.0, heads=3),
    "no tokens": Call(2, 1, 8, tokens=(0,), added=F32, norm=0.0),
}


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("call", NORMED.values(), ids=NORMED)
def test_what_is_read_is_normalised(kernel, call, backend):
    """The gradient of a score of which nothing depends is zero, and of one channel the norm leaves little."""
    inputs = call.inputs()
    size = sum(float(x.double().norm()) for x in inputs)
    assert_right(call.operator(backend), call.exact, *inputs, roundings=1 if backend == "cpu" else 6, cancelling=size)


@pytest.mark.parametrize(("size", "eps"), [(1e25, 1e-6), (1e-22, 0.0)])
def test_a_norm_of_magnitudes_whose_squares_do_not_fit(kernel, size, eps):
    def operator(v, query, weight):
        norm = Norm(weight, eps)
        return read([v], None, [query], [], (), 1e-6, F32, "cpu", norm=norm)[0][0]

    def exact(v, query, weight):
        return v / (v.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight

    inputs = size * torch.randn(4, 40), torch.zeros(40), make_vector(40, centre=1.0)
    pairs = zip(value_and_gradients(operator, *inputs), value_and_gradients(exact, *in_double(*inputs)), strict=True)
    assert all((one.double() - other).norm() <= 1e-5 * other.norm() for one, other in pairs)


def test_a_source_alone_is_the_output(backend):
    """Its weight is one: the query's gradient is zero, or what rounding leaves of sums as large as the output."""
    call = Call(1, 1, 7)
    inputs = call.inputs()
    assert_right(call.operator(backend), call.exact, *inputs, cancelling=float(inputs[0].norm()))


def test_a_sum_is_torch_s(kernel):
    call = Call(3, 2, 7, dtypes=(BF16,), added=BF16, out=BF16)
    inputs = call.inputs()
    *_, total = call.operator("cpu")(*inputs)
    expected = inputs[call.sources - 1] + inputs[-1]
    assert total.dtype == expected.dtype and torch.equal(total, expected)


def test_what_is_added_may_be_strided(backend):
    sources, y, query = make_sources(2, 7, 24), torch.randn(24, 7).mT, make_vector(24)
    (out,), total = read(sources, y, [query], [], (), EPS, F32, backend)
    assert torch.equal(total, sources[-1] + y)
    (expected,), _ = attend([sources[0], total], [query], [], (), EPS, F32, backend)
    torch.testing.assert_close(out, expected)


@pytest.mark.parametrize("used", ["the attention", "the sum", "one query", "one log-sum-exp"])
def test_results_that_nobody_uses_have_no_gradient(backend, used):
    """The kernel is then given zeros, or nothing: no garbage may come of it."""
    inputs = [*make_sources(2, 7, 24), torch.randn(7, 24), make_vector(24), make_vector(24)]

    def operator(a, b, y, *queries):
        if used in ("the attention", "the sum"):
            (out,), total = read([a, b], y, queries[:1], [], (), EPS, F32, backend)
            return total if used == "the sum" else out
        outs, lses = attend([a, b, y], queries, [], (), EPS, F32, backend)
        return outs[1] if used == "one query" else lses[1]

    def exact(a, b, y, *queries):
        return {
            "the attention": lambda: plain([a, b + y], queries[0]),
            "the sum": lambda: b + y,
            "one query": lambda: plain([a, b, y], queries[1]),
            "one log-sum-exp": lambda: plain_scores(torch.stack([a, b, y]), queries[1]).logsumexp(0),
        }[used]()

    assert_right(operator, exact, *inputs)


def test_two_phases_are_one_attention(backend):
    """`merge_partial` after `attend_blocks` is the attention to one source more, in values and all gradients."""
    inputs = [make_vector(37), *make_sources(5, 15, 37)]

    def merged(query, *sources):
        out, lse = attend_blocks(sources[:-1], query.unsqueeze(0), backend=backend)
        assert out.shape == (1, 15, 37) and lse.shape == (1, 15)
        return merge_partial(sources[-1], query, out[0], lse[0], backend=backend)

    assert_right(merged, lambda query, *sources: plain(sources, query), *inputs)


def test_the_phases_in_bfloat16_round_once(backend):
    bank, partial = make_sources(4, 15, 24, dtypes=(BF16,)), torch.randn(15, 24).to(BF16)
    query = make_vector(24)
    out, lse = attend_blocks(bank, query[None], backend=backend)
    assert out.dtype == lse.dtype == F32
    assert merge_partial(partial, query, out[0], lse[0], backend=backend, dtype=F32).dtype == F32
    h = merge_partial(partial, query, out[0], lse[0], backend=backend)
    exact = plain([x.double() for x in (*bank, partial)], query.double())
    assert h.dtype == BF16 and (h != exact.to(BF16)).float().mean() < 0.02, "but for numbers at a tie"


def test_gradients_of_a_merge_do_not_feel_the_output_s_rounding(kernel):
    """Nor does the prior's share of the mixture, here 3e-3, by which an error in g . h would be divided."""
    partial, query, out = torch.randn(40, 48).to(BF16), make_vector(48), torch.randn(40, 48)
    lse = torch.full((40,), -6.0)
    call = Call(1, 1, 48, (40,), dtypes=(BF16,), gains=False, prior=F32, out=BF16)
    assert_right(call.operator("cpu"), call.exact, partial, query, out, lse)


@pytest.mark.parametrize("call", [Call(3, 1, 33, (4,), gains=False), Call(3, 3, 33, (4,), gains=False)], ids=str)
def test_gradients_where_one_source_takes_nearly_all(backend, call):
    """At scores of 60 the lse is rounded by 2e-6, and what the other sources get is about 1e-3."""
    dim, top = 33, torch.nn.functional.rms_norm(torch.randn(33), [33])
    sources = [top.expand(4, dim), 0.88 * top + 0.47 * torch.randn(4, dim), torch.randn(4, dim)]
    queries = [(60 - j) / dim * top for j in range(call.queries)]
    assert_right(call.operator(backend), call.exact, *sources, *queries)


def test_saved_tensors_may_come_back_with_other_strides(kernel):
    """A saved-tensor hook, of offloading for one, may give back copies of any layout."""
    call = Call(2, 2, 12, prior=F32)
    inputs = call.inputs()
    expected = value_and_gradients(call.operator("cpu"), *inputs)
    turned = lambda x: x.mT.contiguous().mT if x.ndim > 1 else x.clone()  # noqa: E731
    with torch.autograd.graph.saved_tensors_hooks(turned, lambda x: x):
        actual = value_and_gradients(call.operator("cpu"), *inputs)
    assert all(map(torch.equal, actual, expected))


@pytest.mark.parametrize(("size", "eps", "dim", "queries"), HUGE_AND_TINY)
def test_sources_whose_squares_float32_cannot_hold(backend, size, eps, dim, queries):
    assert_right_at(size, eps, dim, backend, queries)
    assert_right_at(size, eps, dim, backend, queries, gradient=1 / size)  # as of a norm behind the attention


def test_heads_of_sources_whose_squares_float32_cannot_hold(kernel):
    """Without an eps the weights do not know how large the sources are."""
    sources, query, size = make_sources(3, 2, 40), make_vector(40).view(5, 8), 2.0**84

    def operator(*sources):
        return attend(sources, [query], [], (), 0.0, F32, "cpu")[0][0]

    found = value_and_gradients(operator, *(size * v for v in sources))
    expected = value_and_gradients(operator, *sources)
    torch.testing.assert_close(found[0] / size, expected[0])
    torch.testing.assert_close(found[1:], expected[1:])
