"""depth_attention: an independent package, finite differences, dtypes, strides, magnitudes, and NaN."""

from __future__ import annotations

import pytest
import torch

from attnres.errors import UsageError
from attnres.ops import DepthAttention, attend_blocks, depth_attention, merge_partial
from tests.connections.test_oracles import naive_attnres
from tests.ops.cases import BF16, F16, F32, F64, Call, assert_right, in_double, make_sources, make_vector, plain


def reading(backend, count):
    """depth_attention with a gain as a function of its tensors, and its definition."""

    def operator(*tensors):
        return depth_attention(tensors[:count], *tensors[count:], backend=backend)

    return operator, lambda *tensors: plain(tensors[:count], *tensors[count:])


def test_it_is_what_another_package_computes(backend):
    theirs = naive_attnres()
    inputs = [*make_sources(7, 2, 15, 40), make_vector(40), make_vector(40, centre=1.0)]
    assert_right(reading(backend, 7)[0], lambda *x: theirs(x[7], x[:7], x[8]), *inputs)


def test_plain_pytorch_agrees_with_finite_differences():
    sources = [torch.randn(2, 5, dtype=F64, requires_grad=True) for _ in range(3)]
    query, gain = (torch.randn(5, dtype=F64, requires_grad=True) for _ in range(2))
    queries = torch.randn(2, 5, dtype=F64, requires_grad=True)

    def two_phases(partial, queries, *bank):
        out, lse = attend_blocks(bank, queries)
        return out, lse, merge_partial(partial, queries[1], out[1], lse[1])

    assert torch.autograd.gradcheck(lambda *x: depth_attention(x[:3], x[3], x[4]), (*sources, query, gain))
    assert torch.autograd.gradgradcheck(lambda *x: depth_attention(x[:3], x[3], x[4]), (*sources, query, gain))
    assert torch.autograd.gradcheck(two_phases, (sources[0], queries, *sources[1:]))


@pytest.mark.parametrize("scale", [1e-12, 1e17])
def test_any_magnitude(backend, scale):
    """eps matters below it, and softmax must not overflow above it."""
    inputs = [*(scale * x for x in make_sources(3, 15, 16)), 20 * make_vector(16), make_vector(16, centre=1.0)]
    assert_right(*reading(backend, 3), *inputs)


@pytest.mark.parametrize("bad", [float("nan"), float("-inf")])
def test_bad_values_come_through(backend, bad):
    """In their own tokens, and only there: a loss that is NaN must be seen."""
    sources = make_sources(3, 4, 19)
    sources[1][2, 5] = bad
    for x in sources:
        x.requires_grad_()
    h = depth_attention(sources, make_vector(19), backend=backend)
    assert h[2].isnan().any() and h[[0, 1, 3]].isfinite().all()
    h.sum().backward()
    for x in sources:
        assert x.grad[2].isnan().any() and x.grad[[0, 1, 3]].isfinite().all()


def test_the_result_is_rounded_once(backend):
    """The bfloat16 result is the float64 one rounded, but for the few values at a tie."""
    inputs = [*make_sources(9, 64, 48, dtypes=(BF16,)), make_vector(48)]
    actual = depth_attention(inputs[:9], inputs[9], backend=backend)
    exact = plain(in_double(*inputs[:9]), inputs[9].double()).to(BF16)
    assert (actual != exact).float().mean() < 0.01


def test_strides_of_any_kind(backend):
    storage = torch.randn(4, 24, 10, 3)
    sources = [storage[0, :, :, 0].t(), torch.randn(10, 72)[:, ::3], torch.randn(24).expand(10, 24)]
    vectors = (torch.randn(48) / 5)[::2], torch.ones(1).expand(24)
    operator, exact = reading(backend, 3)
    weights = torch.randn(24, 10, dtype=F64)

    def turned(function):  # a gradient that is not contiguous, either
        return lambda *x: function(*x).t() * weights.to(x[0].dtype)

    inputs = [*sources, *vectors]
    assert not any(x.is_contiguous() for x in inputs)
    assert_right(turned(operator), turned(exact), *inputs)


def test_empty_batch(backend):
    shape = (3, 0, 8)
    inputs = [x.requires_grad_() for x in (torch.randn(shape), torch.randn(shape), torch.randn(8), torch.ones(8))]
    h = depth_attention(inputs[:2], *inputs[2:], backend=backend)
    assert h.shape == shape
    for gradient, x in zip(torch.autograd.grad(h.sum(), inputs), inputs, strict=True):
        assert torch.equal(gradient, torch.zeros_like(x))
    out, lse = attend_blocks(inputs[:2], torch.randn(3, 8), backend=backend)
    assert out.shape == (3, *shape) and lse.shape == (3, *shape[:-1])


def test_one_tensor_as_several_sources(backend):
    """Its gradient is the sum of theirs; the query's is zero, for the weights are equal whatever it is."""
    x, query = torch.randn(5, 8), make_vector(8)
    operator = lambda x, query: depth_attention([x, x, x], query, backend=backend)  # noqa: E731
    exact = lambda x, query: plain([x, x, x], query)  # noqa: E731
    assert_right(operator, exact, x, query, cancelling=float(x.norm()))


@pytest.mark.parametrize("wide", [0, 2])
def test_one_float64_input_is_enough_for_float64(wide):
    """The others are exact in it: a float32 query must not cost a float64 stream its digits."""
    inputs = [*make_sources(2, 3, 24), make_vector(24), make_vector(24, centre=1.0)]
    inputs[wide] = inputs[wide].double()
    value = depth_attention(inputs[:2], *inputs[2:])
    exact = plain(in_double(*inputs[:2]), *in_double(*inputs[2:]))
    assert value.dtype == inputs[0].dtype, "that of the first source"
    tolerance = 100 * torch.finfo(F64).eps if wide == 0 else torch.finfo(F32).eps
    torch.testing.assert_close(value.double(), exact, rtol=0, atol=tolerance * float(exact.abs().max()))


@pytest.mark.parametrize("dtype", [F64, F16])
def test_auto_takes_what_the_kernel_does_not(kernel, dtype):
    call = Call(3, dim=8, dtypes=(dtype,), vectors=dtype, out=dtype)
    assert_right(call.operator("auto"), call.exact, *call.inputs(), roundings=6)
    with pytest.raises(UsageError, match=f"'cpu' does not take {str(dtype).removeprefix('torch.')}"):
        call.operator("cpu")(*call.inputs())
    with pytest.raises(UsageError, match="'cpu' does not take"):
        Call(out=dtype).operator("cpu")(*Call().inputs())


def test_the_module_of_one_site_is_the_operator_and_stays_out_of_autocast():
    sources = [torch.randn(3, 5, 8) for _ in range(4)]
    read = DepthAttention(8)
    torch.testing.assert_close(read(sources), torch.stack(sources).mean(0))
    with torch.no_grad():
        read.query.normal_()
        read.gain.normal_()
    with torch.autocast("cpu", torch.bfloat16):
        h = read(sources)
    torch.testing.assert_close(h, depth_attention(sources, read.query, read.gain), rtol=0, atol=0)
