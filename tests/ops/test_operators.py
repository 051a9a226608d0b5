"""Values and gradients of depth attention against float64, fla's oracle and finite differences."""

from __future__ import annotations

import pytest
import torch

from attnres.errors import UsageError
from attnres.ops import attend_blocks, depth_attention, merge_partial
from tests.ops.cases import (
    FUSED,
    assert_near,
    both_backends,
    in_double,
    make_sources,
    make_vector,
    naive_attnres,
    plain,
    value_and_gradients,
)

F32, BF16, F16, F64 = torch.float32, torch.bfloat16, torch.float16, torch.float64


def attention_of(backend, count, has_gain=True):
    """depth_attention as a function of its tensors in one row, and the same in the plainest float64."""

    def split(tensors):
        return tensors[:count], tensors[count], tensors[count + 1] if has_gain else None

    def operator(*tensors):
        sources, query, gain = split(tensors)
        return depth_attention(sources, query, gain, backend=backend)

    return operator, lambda *tensors: plain(*split(tensors))


@both_backends
@pytest.mark.parametrize("count", [*range(1, 18), 33, 64] if FUSED == "cpu" else [1, 2, 3, 17, 64])
def test_any_number_of_sources(backend, count):
    operator, exact = attention_of(backend, count)
    inputs = [*make_sources(count, 3, 5, 24), make_vector(24), make_vector(24, centre=1.0)]
    assert_near(value_and_gradients(operator, *inputs), value_and_gradients(exact, *in_double(*inputs)))


@pytest.mark.parametrize("wide", range(4))
def test_one_float64_input_is_enough_for_float64(wide):
    """The others are exact in it: a float32 query must not cost a float64 stream its digits."""
    operator, exact = attention_of("auto", 2)
    inputs = [*make_sources(2, 3, 24), make_vector(24), make_vector(24, centre=1.0)]
    inputs[wide] = inputs[wide].double()
    for value, expected in zip(operator(*inputs), exact(*in_double(*inputs)), strict=True):
        tolerance = 1e-14 if wide == 0 else 1e-6  # the result is of the first source's dtype
        torch.testing.assert_close(value.double(), expected, rtol=0, atol=tolerance)


@both_backends
def test_512_sources(backend):
    operator, exact = attention_of(backend, 512)
    inputs = [*make_sources(512, 2, 20), make_vector(20), make_vector(20, centre=1.0)]
    assert_near(value_and_gradients(operator, *inputs), value_and_gradients(exact, *in_double(*inputs)))


@both_backends
@pytest.mark.parametrize("dim", [1, 2, 7, 15, 16, 17, 31, 32, 33, 63, 65, 100, 129, 257, 7186])
def test_any_dim(backend, dim):
    operator, exact = attention_of(backend, 3)
    inputs = [*make_sources(3, 15, dim), make_vector(dim), make_vector(dim, centre=1.0)]
    assert_near(value_and_gradients(operator, *inputs), value_and_gradients(exact, *in_double(*inputs)))


@both_backends
@pytest.mark.parametrize("shape", [(8,), (1, 8), (15, 8), (1000 if FUSED == "cpu" else 40, 8), (2, 3, 5, 8)])
def test_any_leading_shape(backend, shape):
    operator, exact = attention_of(backend, 4, has_gain=False)
    inputs = [*make_sources(4, *shape), make_vector(8)]
    assert_near(value_and_gradients(operator, *inputs), value_and_gradients(exact, *in_double(*inputs)))


@both_backends
@pytest.mark.parametrize(
    ("sources", "parameters"), [((BF16,), F32), ((F32, BF16), F32), ((BF16, F32), BF16), ((F32,), BF16)], ids=str
)
def test_any_mix_of_dtypes(backend, sources, parameters):
    operator, exact = attention_of(backend, 5)
    inputs = [*make_sources(5, 15, 33, dtypes=sources), make_vector(33, parameters), make_vector(33, parameters, 1.0)]
    actual = value_and_gradients(operator, *inputs)
    assert actual[0].dtype == sources[0]
    assert [gradient.dtype for gradient in actual[1:]] == [x.dtype for x in inputs]
    assert_near(actual, value_and_gradients(exact, *in_double(*inputs)))


@both_backends
def test_one_rounding_only(backend):
    """The bfloat16 result is the float64 one rounded once, but for the few values at a tie."""
    if backend == "triton":
        pytest.skip("Triton's interpreter cuts bfloat16 off where a GPU rounds to nearest")
    inputs = [*make_sources(9, 64, 48, dtypes=(BF16,)), make_vector(48)]
    actual = depth_attention(inputs[:9], inputs[9], backend=backend)
    exact = plain(in_double(*inputs[:9]), inputs[9].double()).to(BF16)
    assert (actual != exact).float().mean() < 0.002


@both_backends
def test_non_contiguous_sources(backend):
    storage = torch.randn(4, 24, 10, 3)
    views = [
        storage[0, :, :, 0].t(),
        storage[1, :, :, 1].t(),
        torch.randn(10, 72)[:, ::3],
        torch.randn(24).expand(10, 24),
    ]
    query, gain = (torch.randn(48) / 5)[::2], torch.ones(1).expand(24)
    operator, exact = attention_of(backend, 4)
    inputs = [*views, query, gain]
    assert not any(x.is_contiguous() for x in inputs)

    def through(function, inputs):
        leaves = [x.detach().requires_grad_() for x in inputs]  # without a copy, which would make them contiguous
        h = function(*leaves)
        weights = torch.linspace(-1, 1, h.numel()).view_as(h)
        return [h, *torch.autograd.grad((h * weights.to(h.dtype)).sum(), leaves)]

    assert_near(through(operator, inputs), through(exact, in_double(*inputs)))


@both_backends
def test_non_contiguous_gradient(backend):
    operator, exact = attention_of(backend, 2)
    inputs = [*make_sources(2, 6, 6), make_vector(6), make_vector(6, centre=1.0)]
    weights = torch.randn(6, 6, dtype=F64)

    def transposed(function):
        return lambda *x: (function(*x).t() * weights.to(x[0].dtype)).sum()

    assert_near(
        value_and_gradients(transposed(operator), *inputs), value_and_gradients(transposed(exact), *in_double(*inputs))
    )


@both_backends
@pytest.mark.parametrize("shape", [(0, 8), (3, 0, 8)])
def test_empty_batch(backend, shape):
    operator, _ = attention_of(backend, 2)
    inputs = [torch.randn(shape), torch.randn(shape), torch.randn(8), torch.ones(8)]
    h, *gradients = value_and_gradients(operator, *inputs)
    assert h.shape == shape
    for gradient, x in zip(gradients, inputs, strict=True):
        assert torch.equal(gradient, torch.zeros_like(x))
    out, lse = attend_blocks(inputs[:2], torch.randn(3, 8), backend=backend)
    assert out.shape == (3, *shape) and lse.shape == (3, *shape[:-1])


@both_backends
def test_one_tensor_as_several_sources(backend):
    x, query = torch.randn(5, 8), make_vector(8)
    operator = lambda x, query: depth_attention([x, x, x], query, backend=backend)  # noqa: E731
    exact = lambda x, query: plain([x, x, x], query)  # noqa: E731
    actual, expected = value_and_gradients(operator, x, query), value_and_gradients(exact, *in_double(x, query))
    assert_near(actual, expected, floor=1.0)  # the query's gradient is zero: the weights are equal whatever it is


@both_backends
@pytest.mark.parametrize("scale", [1e-12, 1e-4, 1e4, 1e12, 1e17])
def test_any_magnitude(backend, scale):
    """eps matters below it, and softmax must not overflow above it."""
    operator, exact = attention_of(backend, 3)
    inputs = [*(scale * x for x in make_sources(3, 15, 16)), 20 * make_vector(16), make_vector(16, centre=1.0)]
    actual, expected = value_and_gradients(operator, *inputs), value_and_gradients(exact, *in_double(*inputs))
    assert_near(actual, expected, 2e-4)


@both_backends
def test_scores_far_apart(backend):
    """One source takes all of the mass: weights underflow to zero and nothing else breaks."""
    query = torch.full((16,), 40.0)
    inputs = [torch.ones(5, 16), -torch.ones(5, 16), torch.randn(5, 16), query]
    operator, _ = attention_of(backend, 3, has_gain=False)
    h, *gradients = value_and_gradients(operator, *inputs)
    torch.testing.assert_close(h, inputs[0])
    assert all(gradient.isfinite().all() for gradient in gradients)


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # of the interpreter's numpy
@both_backends
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_bad_values_come_through(backend, bad):
    """In their own tokens, and only there."""
    sources = make_sources(3, 4, 19)
    sources[1][2, 5] = bad
    for x in sources:
        x.requires_grad_()
    h = depth_attention(sources, make_vector(19), backend=backend)
    assert h[2].isnan().any() and h[[0, 1, 3]].isfinite().all()
    h.sum().backward()
    for x in sources:
        assert x.grad[2].isnan().any() and x.grad[[0, 1, 3]].isfinite().all()


@both_backends
def test_matches_fla(backend):
    sources, query, gain = make_sources(7, 2, 15, 40), make_vector(40), make_vector(40, centre=1.0)
    expected = value_and_gradients(lambda *x: naive_attnres()(x[7], x[:7], x[8]), *sources, query, gain)
    operator, _ = attention_of(backend, 7)
    assert_near(value_and_gradients(operator, *sources, query, gain), expected)


def test_reference_against_finite_differences():
    sources = [torch.randn(2, 5, dtype=F64, requires_grad=True) for _ in range(3)]
    query, gain = (torch.randn(5, dtype=F64, requires_grad=True) for _ in range(2))
    queries = torch.randn(2, 5, dtype=F64, requires_grad=True)

    def two_phases(partial, queries, *bank):
        out, lse = attend_blocks(bank, queries)
        return out, lse, merge_partial(partial, queries[1], out[1], lse[1])

    assert torch.autograd.gradcheck(lambda *x: depth_attention(x[:3], x[3], x[4]), (*sources, query, gain))
    assert torch.autograd.gradgradcheck(lambda *x: depth_attention(x[:3], x[3], x[4]), (*sources, query, gain))
    assert torch.autograd.gradcheck(two_phases, (sources[0], queries, *sources[1:]))


@pytest.mark.parametrize("dtype", [F64, F16])
def test_auto_takes_what_the_kernel_does_not(dtype):
    inputs = [*make_sources(3, 15, 8, dtypes=(dtype,)), make_vector(8, dtype)]
    actual = depth_attention(inputs[:3], inputs[3])
    assert actual.dtype == dtype
    assert_near([actual], [plain(in_double(*inputs[:3]), inputs[3].double())], 1e-12 if dtype == F64 else 1e-3)
    name = str(dtype).removeprefix("torch.")
    with pytest.raises(UsageError, match=f"'cpu' does not take {name}; use"):
        depth_attention(inputs[:3], inputs[3], backend="cpu")
    of_that_dtype = {"query": torch.randn(8), "out_j": torch.randn(15, 8), "lse_j": torch.randn(15), "dtype": dtype}
    assert merge_partial(torch.randn(15, 8), **of_that_dtype).dtype == dtype
    with pytest.raises(UsageError, match=f"'cpu' does not take {name}; use"):
        merge_partial(torch.randn(15, 8), **of_that_dtype, backend="cpu")


def test_sources_may_be_stacked():
    x, q, queries = torch.randn(3, 2, 5, 4), torch.randn(4), torch.randn(2, 4)
    assert torch.equal(depth_attention(x, q), depth_attention(list(x), q))
    assert all(map(torch.equal, attend_blocks(x, queries), attend_blocks(list(x), queries)))
