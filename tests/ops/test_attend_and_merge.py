"""attend_blocks and merge_partial: values and gradients against float64, and that the two are one attention."""

from __future__ import annotations

import pytest
import torch

from attnres.ops import add_and_attend, attend, attend_blocks, merge_partial
from tests.ops.cases import (
    BF16_ROUNDING,
    FUSED,
    assert_near,
    both_backends,
    in_double,
    make_sources,
    make_vector,
    plain,
    plain_lse,
    value_and_gradients,
)

F32, BF16 = torch.float32, torch.bfloat16


@both_backends
@pytest.mark.parametrize("number", [1, 2, 3, 4, 5, 6, 7, 8, 9, 16] if FUSED == "cpu" else [1, 3, 9])
@pytest.mark.parametrize("count", [1, 5])
def test_attend_blocks(backend, number, count):
    """For any number of queries, with a gradient through lse too."""
    queries = torch.stack([make_vector(21) for _ in range(number)])
    inputs = [queries, *make_sources(count, 15, 21)]

    def exact(queries, *bank):
        return torch.stack([plain(bank, q) for q in queries]), torch.stack([plain_lse(bank, q) for q in queries])

    actual = value_and_gradients(lambda queries, *bank: attend_blocks(bank, queries, backend=backend), *inputs)
    assert actual[0].shape == (number, 15, 21) and actual[1].shape == (number, 15)
    assert_near(actual, value_and_gradients(exact, *in_double(*inputs)), 5e-5)


@both_backends
@pytest.mark.parametrize(("count", "dtypes"), [(18, (BF16,)), (5, (F32, BF16))], ids=["many", "mixed"])
def test_attend_blocks_to_any_sources(backend, count, dtypes):
    inputs = [torch.stack([make_vector(40) for _ in range(3)]), *make_sources(count, 2, 40, dtypes=dtypes)]

    def exact(queries, *bank):
        return torch.stack([plain(bank, q) for q in queries]), torch.stack([plain_lse(bank, q) for q in queries])

    actual = value_and_gradients(lambda queries, *bank: attend_blocks(bank, queries, backend=backend), *inputs)
    expected = value_and_gradients(exact, *in_double(*inputs))
    assert_near(actual[:3], expected[:3], 5e-6)  # nothing of them is rounded to bfloat16
    for gradient, exact_one in zip(actual[3:], expected[3:], strict=True):
        sums = backend == "reference" and gradient.dtype == BF16  # autograd rounds each query's and adds them, rounded
        assert_near([gradient], [exact_one], 2 * BF16_ROUNDING if sums else 2e-5)


@both_backends
def test_outputs_without_a_gradient(backend):
    """Only one of the queries' outputs is used: the others' gradients are zero and not garbage."""
    inputs = [torch.randn(3, 8) / 3, *make_sources(3, 15, 8)]
    actual = value_and_gradients(lambda q, *bank: attend_blocks(bank, q, backend=backend)[0][1], *inputs)
    assert_near(actual, value_and_gradients(lambda q, *bank: plain(bank, q[1]), *in_double(*inputs)))
    only_lse = value_and_gradients(lambda q, *bank: attend_blocks(bank, q, backend=backend)[1][2], *inputs)
    assert_near(only_lse, value_and_gradients(lambda q, *bank: plain_lse(bank, q[2]), *in_double(*inputs)))


@both_backends
def test_bank_in_bfloat16_is_not_rounded_before_the_merge(backend):
    bank, queries = make_sources(4, 15, 24, dtypes=(BF16,)), torch.randn(2, 24) / 5
    out, lse = attend_blocks(bank, queries, backend=backend)
    assert out.dtype == F32 and lse.dtype == F32
    assert_near([out[0]], [plain(in_double(*bank), queries[0].double())])


@both_backends
@pytest.mark.parametrize("dtype", [F32, BF16])
def test_two_phases_equal_one(backend, dtype):
    """merge_partial after attend_blocks is depth_attention with one more source, in value and in every gradient."""
    inputs = [make_vector(37), *make_sources(5, 15, 37, dtypes=(dtype,))]

    def merged(query, *sources):
        out, lse = attend_blocks(sources[:-1], query.unsqueeze(0), backend=backend)
        return merge_partial(sources[-1], query, out[0], lse[0], backend=backend)

    actual = value_and_gradients(merged, *inputs)
    assert actual[0].dtype == dtype
    expected = value_and_gradients(lambda query, *sources: plain(sources, query), *in_double(*inputs))
    assert_near(actual, expected, 2e-5 if dtype == F32 else 8e-3)


@both_backends
def test_merge_partial_against_its_formula(backend):
    """With a prior that no sources stand behind, and with the stream in another dtype than the partial."""
    partial, query, out, lse = torch.randn(15, 12), make_vector(12), torch.randn(15, 12), torch.randn(15)

    def exact(partial, query, out, lse):
        score = (partial * query).sum(-1) / (partial.square().mean(-1) + 1e-6).sqrt()
        share = torch.sigmoid(score - lse).unsqueeze(-1)
        return (1 - share) * out + share * partial

    inputs = (partial, query, out, lse)
    actual = value_and_gradients(lambda *x: merge_partial(*x, backend=backend), *inputs)
    assert_near(actual, value_and_gradients(exact, *in_double(*inputs)))
    h = merge_partial(partial.to(BF16), query, out, lse, backend=backend, dtype=F32)
    assert h.dtype == F32
    assert_near([h], [exact(partial.to(BF16).double(), *in_double(query, out, lse))])


@both_backends
@pytest.mark.parametrize(
    ("number", "dtype", "kept"), [(2, F32, F32), (3, BF16, F32), (5, F32, F32), (1, BF16, BF16), (3, BF16, BF16)]
)
def test_each_query_has_a_prior_of_its_own(backend, number, dtype, kept):
    """What several reads of a site are: one call, as many merges; each gradient as of calls one by one.

    A prior kept in bfloat16 has its gradient in it, too.
    """
    vectors = [*(make_vector(37) for _ in range(number)), *(make_vector(37, centre=1.0) for _ in range(number))]
    sources = make_sources(2, 15, 37, dtypes=(dtype,))
    prior = [*(torch.randn(15, 37).to(kept) for _ in range(number)), *(torch.randn(15) for _ in range(number))]

    def operator(*tensors):
        lists = tensors[:2], tensors[2 : 2 + number], tensors[2 + number : -2 * number], tensors[-2 * number :]
        outs, lses = attend(*lists, 1e-6, dtype, backend, scale=1.7)
        return *outs, *lses

    def exact(*tensors):
        queries, gains = tensors[2 : 2 + number], tensors[2 + number : -2 * number]
        before, lses_before = tensors[-2 * number : -number], tensors[-number:]
        outs, lses = [], []
        for query, gain, out, lse in zip(queries, gains, before, lses_before, strict=True):
            keys = [v / (v.square().mean(-1, keepdim=True) + 1e-6).sqrt() * gain for v in tensors[:2]]
            scores = torch.stack([*(key @ query for key in keys), lse])
            weights = scores.exp() / scores.exp().sum(0)
            outs.append(1.7 * (weights.unsqueeze(-1) * torch.stack([*tensors[:2], out])).sum(0))
            lses.append(scores.exp().sum(0).log())
        return *outs, *lses

    inputs = [*sources, *vectors, *prior]
    expected = value_and_gradients(exact, *in_double(*inputs))
    assert_near(value_and_gradients(operator, *inputs), expected, 2e-5 if dtype == F32 else 8e-3)


@both_backends
def test_merged_gradients_do_not_feel_the_output_s_rounding(backend):
    """Nor does its share of the mixture: 1 - a is 3e-3 here, by which an error in g . h would be divided."""
    partial, query, out = torch.randn(40, 48).to(BF16), make_vector(48), torch.randn(40, 48)
    lse = torch.full((40,), -6.0)
    merged = lambda q, o, s: merge_partial(partial, q, o, s, backend=backend).double()  # noqa: E731
    exact = lambda q, o, s: merge_partial(partial.double(), q, o, s, backend="reference")  # noqa: E731
    actual = value_and_gradients(merged, query, out, lse)
    expected = value_and_gradients(exact, *in_double(query, out, lse))
    assert_near(actual[1:], expected[1:], 1e-4)


@both_backends
def test_saved_tensors_may_come_back_with_other_strides(backend):
    inputs = [*make_sources(4, 15, 12), make_vector(12)]

    def both(*tensors):
        out, lse = attend_blocks(tensors[:3], tensors[4].unsqueeze(0), backend=backend)
        return merge_partial(tensors[3], tensors[4], out[0], lse[0], backend=backend)

    turned = lambda x: x.mT.contiguous().mT if x.ndim > 1 else x  # noqa: E731
    with torch.autograd.graph.saved_tensors_hooks(turned, lambda x: x):
        actual = value_and_gradients(both, *inputs)
    assert_near(actual, value_and_gradients(both, *inputs))


@both_backends
@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("merges", [False, True])
def test_scale_multiplies_the_outs_alone(backend, dtype, merges):
    """Before the one rounding; neither lse nor the prior is scaled, and every gradient knows of it."""
    scale, (query, gain), sources = 5.3, (make_vector(33), make_vector(33, centre=1.0)), make_sources(4, 15, 33)
    inputs = [query, gain, *(x.to(dtype) for x in sources)]

    def operator(query, gain, *sources):
        prior, rest = (), sources
        if merges:
            (out,), (lse,) = attend(sources[:3], [query], [gain], (), 1e-6, F32, backend)
            prior, rest = (out, lse), sources[3:]
        (out,), (lse,) = attend(rest, [query], [gain], prior, 1e-6, dtype, backend, scale)
        return out, lse

    def exact(query, gain, *sources):
        return scale * plain(sources, query, gain), plain_lse(sources, query * gain)

    actual = value_and_gradients(operator, *inputs)
    assert_near(actual, value_and_gradients(exact, *in_double(*inputs)), 2e-5 if dtype == F32 else 8e-3)
    once_rounded = exact(*in_double(*inputs))[0].to(dtype)
    if dtype == BF16 and backend != "triton":  # the interpreter cuts off where a GPU rounds
        assert (actual[0] != once_rounded).float().mean() < 0.01


SUMMANDS = [(F32, F32), (BF16, BF16), (BF16, F32), (F32, BF16)]


@both_backends
@pytest.mark.parametrize("dtypes", SUMMANDS, ids=str)
@pytest.mark.parametrize(("count", "number", "merges"), [(1, 1, True), (3, 1, False), (1, 3, True), (6, 2, False)])
def test_a_sum_and_the_attention_to_it(backend, count, number, merges, dtypes):
    """The sum is rounded once, the attention is to what it was rounded to, and both summands have all its gradient."""
    dim, stream = 37, dtypes[0]
    sources = make_sources(count, 7, dim, dtypes=(stream,))
    y = torch.randn(dim, 7).mT.to(dtypes[1])  # in memory the other way round
    vectors = [*(make_vector(dim) for _ in range(number)), *(make_vector(dim, centre=1.0) for _ in range(number))]
    prior = [*(torch.randn(7, dim) for _ in range(number)), *(torch.randn(7) for _ in range(number))] if merges else []

    def operator(attention):
        def run(*tensors):
            queries, rest = tensors[count + 1 :][:number], tensors[count + 1 + number :]
            return attention(tensors[:count], tensors[count], queries, rest[:number], rest[number:])

        return run

    def one_pass(*groups):
        outs, total = add_and_attend(*groups, 1e-6, stream, backend, scale=1.7)
        return *outs, total

    def two_passes(sources, y, *rest):
        total = sources[-1] + y
        return *attend((*sources[:-1], total), *rest, 1e-6, sources[0].dtype, "reference", scale=1.7)[0], total

    inputs = [*sources, y, *vectors, *prior]
    actual = value_and_gradients(operator(one_pass), *inputs)
    assert actual[number].dtype == torch.promote_types(*dtypes)
    if FUSED == "cpu":  # the interpreter cuts off where a GPU rounds
        assert torch.equal(actual[number], sources[-1] + y)
    exact = value_and_gradients(operator(two_passes), *in_double(*inputs))
    assert_near(actual, exact, 2e-5 if dtypes == (F32, F32) else 2 * BF16_ROUNDING)


@both_backends
@pytest.mark.parametrize("used", ["the attention", "the sum"])
def test_one_of_the_two_results_is_used(backend, used):
    inputs = [*make_sources(2, 7, 24), torch.randn(7, 24), make_vector(24)]

    def one_pass(a, b, y, query):
        (out,), total = add_and_attend([a, b], y, [query], [], (), 1e-6, F32, backend)
        return (total if used == "the sum" else out) + 0 * (a + query)

    def exact(a, b, y, query):
        return (b + y if used == "the sum" else plain([a, b + y], query)) + 0 * (a + query)

    assert_near(value_and_gradients(one_pass, *inputs), value_and_gradients(exact, *in_double(*inputs)))


@both_backends
@pytest.mark.parametrize("merges", [False, True])
@pytest.mark.parametrize("number", [1, 3])
def test_gradients_where_one_source_takes_nearly_all(backend, number, merges):
    """At scores of 60 the lse is rounded by 2e-6, and what the other sources get is about 1e-3."""
    dim, top = 33, torch.nn.functional.rms_norm(torch.randn(33), [33])
    sources = [top.expand(4, dim), 0.88 * top + 0.47 * torch.randn(4, dim), torch.randn(4, dim)]
    queries = [(60 - j) / dim * top for j in range(number)]

    def operator(*tensors):
        queries, sources, prior = tensors[:number], tensors[number:], ()
        if merges:
            first, sources = sources[:1], sources[1:]
            outs, lses = attend(first, queries, (), (), 1e-6, F32, backend)
            prior = (*outs, *lses)
        return tuple(attend(sources, queries, (), prior, 1e-6, F32, backend)[0])

    def exact(*tensors):
        return tuple(plain(tensors[number:], query) for query in tensors[:number])

    actual = value_and_gradients(operator, *queries, *sources)
    assert_near(actual, value_and_gradients(exact, *in_double(*queries, *sources)), 3e-4)
