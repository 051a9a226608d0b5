"""Sums of normalised outputs: values and gradients against float64, and what torch does to a model."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import forward_ad

from attnres.ops import add_both, add_normalised, normalise, normalise_backward
from tests.ops.cases import BF16, EPS, F32, F64, assert_near, assert_right, in_double, value_and_gradients


def exact(y, total=0.0):
    return total + y / (y.square().mean(-1, keepdim=True) + EPS).sqrt()


def by(backend, **options):
    return lambda y, *total: add_normalised(y, *total, backend=backend, **options)


@pytest.mark.parametrize(
    ("shape", "has_total"), [((15, 7), False), ((2, 3, 87), True), ((64,), False), ((4, 1025), True), ((200, 2), True)]
)
def test_values_and_gradients(backend, shape, has_total):
    assert_right(by(backend), exact, *(torch.randn(shape) for _ in range(1 + has_total)))


@pytest.mark.parametrize(("of_y", "of_total"), [(BF16, F32), (F32, BF16), (BF16, BF16)])
def test_any_mix_of_dtypes(backend, of_y, of_total):
    y, total = torch.randn(15, 33).to(of_y), torch.randn(15, 33).to(of_total)
    assert_right(by(backend), exact, y, total, roundings=1 if backend == "cpu" else 4)
    assert by(backend)(y, total).dtype == torch.promote_types(of_y, of_total)
    assert by(backend, dtype=F32)(y, total).dtype == F32


@pytest.mark.parametrize("scale", [1e-12, 1e17])
def test_any_magnitude(backend, scale):
    assert_right(by(backend), exact, scale * torch.randn(15, 33), torch.randn(15, 33))


def test_strides_of_any_kind(backend):
    y, total = torch.randn(2, 6, 5).mT, torch.randn(1, 1, 6).expand(2, 5, 6)
    turned = lambda function: lambda y, total: function(y, total).sum(0).mT.square()  # noqa: E731
    assert not y.is_contiguous() and not total.is_contiguous()
    assert_right(turned(by(backend)), turned(exact), y, total)


def test_the_pair_for_autograd_functions(backend, monkeypatch):
    if backend == "reference":
        monkeypatch.setattr("attnres.ops.operators.is_fused", lambda *_: False)
    y, grad = torch.randn(5, 33), torch.randn(5, 33)
    n, inverse_rms = normalise(y, EPS)
    wide = y.double().requires_grad_()
    (expected,) = torch.autograd.grad(exact(wide), wide, grad.double())
    assert_near([n, normalise_backward(grad, y, inverse_rms)], [exact(y.double()), expected])


def test_what_is_kept_is_y_alone(kernel):
    saved = []
    y, total = torch.randn(64, 40, requires_grad=True), torch.randn(64, 40, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda x: (saved.append(x), x)[1], lambda x: x):
        add_normalised(y, total)
    assert sorted(x.numel() for x in saved) == [64, 64 * 40]


def exact_both(y, total, raw):
    return exact(y, total), raw + y


def both(backend, dtype=F32):
    return lambda y, total, raw: add_both(y, total, raw, EPS, dtype, backend)


@pytest.mark.parametrize("of_raw", [F32, BF16])
def test_both_sums_at_once(backend, of_raw):
    y, total, raw = torch.randn(3, 5, 33), torch.randn(3, 5, 33), torch.randn(3, 5, 33).to(of_raw)
    for results in (slice(0, 1), slice(1, 2), slice(0, 2)):  # used alone, and together
        ours, theirs = (lambda *x, f=f, used=results: f(*x)[used] for f in (both(backend), exact_both))
        assert_right(ours, theirs, y, total, raw)
    assert [x.dtype for x in both(backend, BF16)(y.bfloat16(), total, raw)] == [BF16, of_raw]


@pytest.mark.parametrize("dtype", [F32, BF16])
def test_sums_that_are_kept_anyway_stand_for_y(kernel, dtype):
    y, total, raw = (torch.randn(64, 40, requires_grad=True) for _ in range(3))
    y, saved = (y.detach().to(dtype).requires_grad_()), []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: (saved.append(x.data_ptr()), x)[1], lambda x: x):
        _, after = add_both(y, total, raw.to(dtype), EPS, dtype)
    assert (y.data_ptr() in saved) == (dtype == BF16), "rounded sums would lose y"
    assert after.data_ptr() in saved or dtype == BF16


def test_both_differentiated_again(kernel):
    inputs = [torch.randn(5, 9, requires_grad=True) for _ in range(3)]

    def second(function, y, total, raw):
        out, after = function(y, total, raw)
        (first,) = torch.autograd.grad((out.cos() * after.sin()).sum(), y, create_graph=True)
        return torch.autograd.grad(first.square().sum(), (y, total, raw))

    assert_near(second(both("auto"), *inputs), second(exact_both, *in_double(*inputs)), 1000)


def test_a_sum_that_is_larger_than_y_costs_digits_in_proportion(kernel):
    y, total, raw = torch.randn(64, 40, requires_grad=True), torch.randn(64, 40), 1e3 * torch.randn(64, 40)
    grad = torch.randn(64, 40)
    out, _ = add_both(y, total, raw, EPS, F32)
    expected = torch.autograd.grad(exact(y.double(), total.double()), y, grad.double())
    assert_near(torch.autograd.grad(out, y, grad), expected, 2000)


def test_derivatives_of_all_kinds():
    y, total = torch.randn(2, 5, dtype=F64), torch.randn(2, 5, dtype=F64)
    leaves = (y.requires_grad_(), total.requires_grad_())
    assert torch.autograd.gradcheck(add_normalised, leaves) and torch.autograd.gradgradcheck(add_normalised, leaves)
    y, total = torch.randn(4, 9), torch.randn(4, 9)
    second = lambda f: lambda *x: torch.func.grad(lambda y: torch.func.grad(f)(y, x[1]).square().sum())(x[0])  # noqa: E731
    for transform in (torch.func.grad, second, lambda f: torch.func.vmap(torch.func.grad(f))):
        of_ours, of_exact = (transform(lambda y, t, f=f: f(y, t).cos().sum()) for f in (add_normalised, exact))
        assert_near([of_ours(y, total)], [of_exact(*in_double(y, total))], 1000)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(y, torch.ones_like(y))
        tangent = forward_ad.unpack_dual(add_normalised(dual, total)).tangent
    assert_near([tangent], [torch.func.jvp(exact, (y.double(),), (torch.ones_like(y).double(),))[1]])


def test_compile_fullgraph(kernel):
    torch._dynamo.reset()
    compiled = torch.compile(add_normalised, fullgraph=True, backend="aot_eager")
    y, total = torch.randn(4, 9), torch.randn(4, 9)
    assert_near(value_and_gradients(compiled, y, total), value_and_gradients(add_normalised, y, total))
    arguments = (y.requires_grad_(), [total], [total.clone().requires_grad_()], EPS, F32)
    torch.library.opcheck(torch.ops.attnres.add_normalised.default, arguments)
