"""Sums of normalised outputs: values and gradients against float64, and what torch does to a model."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import forward_ad

from attnres.errors import UsageError
from attnres.ops import add_normalised, backends, normalised
from tests.ops.cases import EPS, FUSED, assert_near, both_backends, in_double, make_sources, value_and_gradients

F32, BF16 = torch.float32, torch.bfloat16


def exact(y, total=0.0):
    return total + y / (y.square().mean(-1, keepdim=True) + EPS).sqrt()


def by(backend, **options):
    return lambda y, *total: add_normalised(y, *total, backend=backend, **options)


@both_backends
@pytest.mark.parametrize("dim", [2, 7, 16, 31, 33, 65, 129, 257, 7186])
@pytest.mark.parametrize("has_total", [False, True])
def test_any_dim(backend, dim, has_total):
    inputs = make_sources(1 + has_total, 3, 5, dim)
    assert_near(value_and_gradients(by(backend), *inputs), value_and_gradients(exact, *in_double(*inputs)))


@both_backends
@pytest.mark.parametrize("shape", [(8,), (1, 8), (1000 if FUSED == "cpu" else 40, 8), (2, 3, 5, 8), (0, 8), (3, 0, 8)])
def test_any_leading_shape(backend, shape):
    inputs = [torch.randn(shape), torch.randn(shape)]
    assert_near(value_and_gradients(by(backend), *inputs), value_and_gradients(exact, *in_double(*inputs)))


@both_backends
@pytest.mark.parametrize(("of_y", "of_total"), [(BF16, F32), (F32, BF16), (BF16, BF16)])
def test_any_mix_of_dtypes(backend, of_y, of_total):
    y, total = torch.randn(15, 33).to(of_y), torch.randn(15, 33).to(of_total)
    actual = value_and_gradients(by(backend), y, total)
    assert actual[0].dtype == torch.promote_types(of_y, of_total)
    assert [gradient.dtype for gradient in actual[1:]] == [of_y, of_total]
    assert_near(actual, value_and_gradients(exact, *in_double(y, total)))
    assert by(backend, dtype=F32)(y, total).dtype == F32


@both_backends
@pytest.mark.parametrize("scale", [1e-12, 1e-4, 1e4, 1e12, 1e17])
def test_any_magnitude(backend, scale):
    inputs = [scale * torch.randn(15, 33), torch.randn(15, 33)]
    assert_near(value_and_gradients(by(backend), *inputs), value_and_gradients(exact, *in_double(*inputs)), 1e-4)


@both_backends
def test_strides_of_any_kind(backend):
    y, total = torch.randn(6, 2, 5).mT, torch.randn(1, 1, 6).expand(2, 5, 6).transpose(0, 1).transpose(0, 1)
    y = torch.randn(2, 6, 5).mT
    assert not y.is_contiguous() and not total.is_contiguous()
    assert_near([by(backend)(y, total)], [exact(*in_double(y, total))])
    leaf = y.detach().requires_grad_()
    by(backend)(leaf).sum(0).mT.square().sum().backward()  # a gradient that is expanded
    other = y.double().detach().requires_grad_()
    exact(other).sum(0).mT.square().sum().backward()
    assert_near([leaf.grad], [other.grad])


@pytest.mark.skipif(FUSED == "triton", reason="it has no memory of its own")
def test_nothing_is_read_before_it_is_written():
    y, total = torch.randn(40, 33), torch.randn(40, 33)
    expected = value_and_gradients(by("cpu"), y, total)
    torch.use_deterministic_algorithms(True)  # results are filled with NaN first
    try:
        assert all(map(torch.equal, value_and_gradients(by("cpu"), y, total), expected))
    finally:
        torch.use_deterministic_algorithms(False)


def test_what_is_kept_is_y_alone():
    saved = []
    y, total = torch.randn(64, 40, requires_grad=True), torch.randn(64, 40, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda x: (saved.append(x), x)[1], lambda x: x):
        add_normalised(y, total)
    assert sorted(x.numel() for x in saved) == [64, 64 * 40]


@pytest.mark.parametrize("dtype", [F32, BF16])
def test_sums_that_are_kept_anyway_stand_for_y(dtype):
    y, total, before = (torch.randn(64, 40, requires_grad=True) for _ in range(3))
    after, grad = (before + y).to(dtype), torch.randn(64, 40)
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: (saved.append(x.data_ptr()), x)[1], lambda x: x):
        out = add_normalised(y, total, sums=(before, after))
    assert (y.data_ptr() in saved) == (dtype == BF16), "rounded sums would lose y"
    assert {before.data_ptr(), after.data_ptr()} <= set(saved) or dtype == BF16
    expected = torch.autograd.grad(exact(y.double(), total.double()), (y, total), grad.double())
    assert_near(torch.autograd.grad(out, (y, total), grad, retain_graph=True), expected)
    (first,) = torch.autograd.grad(out.cos().sum(), y, create_graph=True)  # differentiated again
    (exact_first,) = torch.autograd.grad(exact(y.double(), total.double()).cos().sum(), y, create_graph=True)
    seconds = [torch.autograd.grad(g.square().sum(), (y, before), allow_unused=True) for g in (first, exact_first)]
    assert_near(seconds[0][:1], seconds[1][:1], 1e-4)
    assert seconds[0][1] is None or seconds[0][1].abs().max() < 1e-4, "the derivative by y - before + before is zero"


@pytest.mark.parametrize(("ratio", "error"), [(1, 1e-6), (1e3, 5e-5)])
def test_a_sum_that_is_larger_than_y_costs_digits_in_proportion(ratio, error):
    y, total, before = torch.randn(64, 40, requires_grad=True), torch.randn(64, 40), ratio * torch.randn(64, 40)
    grad = torch.randn(64, 40)
    out = add_normalised(y, total, sums=(before, before + y.detach()))
    expected = torch.autograd.grad(exact(y.double(), total.double()), y, grad.double())
    assert_near(torch.autograd.grad(out, y, grad), expected, error)


def test_second_derivatives_tangents_and_transforms():
    y, total = torch.randn(2, 5, dtype=torch.float64), torch.randn(2, 5, dtype=torch.float64)
    leaves = (y.requires_grad_(), total.requires_grad_())
    assert torch.autograd.gradcheck(add_normalised, leaves) and torch.autograd.gradgradcheck(add_normalised, leaves)
    y, total = torch.randn(4, 9), torch.randn(4, 9)
    loss, true_loss = (lambda y, t, f=f: f(y, t).cos().sum() for f in (add_normalised, lambda y, t: exact(y, t)))
    for transform in (
        torch.func.grad,
        lambda f: lambda *x: torch.func.grad(lambda y: torch.func.grad(f)(y, x[1]).square().sum())(x[0]),
        lambda f: torch.func.vmap(torch.func.grad(f)),
    ):
        torch.testing.assert_close(transform(loss)(y, total), transform(true_loss)(y, total), rtol=1e-4, atol=1e-4)
    leaf = y.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(add_normalised(leaf, total).cos().sum(), leaf, create_graph=True)
    (second,) = torch.autograd.grad(gradient.square().sum(), leaf)
    other = y.double().requires_grad_()
    (gradient,) = torch.autograd.grad(exact(other, total.double()).cos().sum(), other, create_graph=True)
    assert_near([second], torch.autograd.grad(gradient.square().sum(), other), 1e-4)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(y, torch.ones_like(y))
        tangent = forward_ad.unpack_dual(add_normalised(dual, total)).tangent
    assert_near([tangent], [torch.func.jvp(exact, (y.double(),), (torch.ones_like(y).double(),))[1]], 1e-4)


@pytest.mark.skipif(FUSED == "triton", reason="the interpreter is not compiled")
def test_compile_fullgraph():
    torch._dynamo.reset()
    compiled = torch.compile(add_normalised, fullgraph=True, backend="aot_eager")
    y, total = torch.randn(4, 9), torch.randn(4, 9)
    assert_near(value_and_gradients(compiled, y, total), value_and_gradients(add_normalised, y, total))
    if FUSED == "cpu":
        backends.native_backend("cpu")
        for arguments in ((y, [total], EPS, F32), (y.requires_grad_(), [], EPS, BF16)):
            torch.library.opcheck(torch.ops.attnres.add_normalised.default, arguments)


def test_bad_input_is_named():
    y = torch.randn(2, 4)
    with pytest.raises(UsageError, match="y and total must all have one shape"):
        add_normalised(y, torch.randn(3, 4))
    with pytest.raises(UsageError, match="eps must be a number of at least 0"):
        add_normalised(y, eps=-1.0)
    with pytest.raises(UsageError, match="float16 or float64, not int"):
        add_normalised(y.long())
    with pytest.raises(UsageError, match=f"'{FUSED}' does not take float64"):
        add_normalised(y.double(), backend=FUSED)
    backends.native_backend("cpu")
    for device in ("cpu", "meta"):
        x, other, r = (torch.randn(shape, device=device) for shape in ((2, 4), (2, 5), (3,)))
        for call in (
            lambda: torch.ops.attnres.add_normalised(x, [other], EPS, F32),  # noqa: B023
            lambda: torch.ops.attnres.add_normalised(x[:, :0], [], EPS, F32),  # noqa: B023
            lambda: torch.ops.attnres.add_normalised_backward(other, x, r[:2]),  # noqa: B023
            lambda: torch.ops.attnres.add_normalised_backward(x, x, r),  # noqa: B023
        ):
            with pytest.raises((RuntimeError, UsageError), match="a normalised sum"):
                call()
    with pytest.raises(UsageError, match="on cpu cannot take"):
        normalised.check(y, [y.to("meta")], [])
