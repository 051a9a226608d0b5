"""What runs under Triton's interpreter, in a process of its own that `test_triton.py` starts.

TRITON_INTERPRET=1 python -m pytest tests/ops/interpreted.py
"""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
import torch
import triton.language as tl
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

from attnres.ops import add_both, add_normalised, depth_attention, triton_backend
from attnres.ops.backends import native_backend
from tests.ops.cases import (
    BF16,
    EPS,
    F32,
    Call,
    assert_right,
    assert_right_at,
    make_sources,
    make_vector,
)

assert os.environ["TRITON_INTERPRET"] == "1"
_product = InterpreterBuilder.create_dot


def _create_dot(self, a, b, *rest):
    """Multiply numbers: the interpreter multiplies the bit patterns of bfloat16."""
    wide = [
        x if x.dtype != tl.bfloat16 else TensorHandle(self.cast_impl(x, tl.float32).data, tl.float32) for x in (a, b)
    ]
    return _product(self, *wide, *rest)


InterpreterBuilder.create_dot = _create_dot

# So that small inputs, too, need several launches, programs of several tokens and tiles of channels.
triton_backend.AT_ONCE, triton_backend.QUERIES, triton_backend.CHANNELS = 4, 4, 16
triton_backend.PROGRAMS, triton_backend.RUNS = 3, 2

CALLS = {
    "one query, everything": Call(5, 1, 20, (2,), (F32, BF16), prior=F32, added=F32, scale=1.7),
    "a merge in bfloat16": Call(1, 1, 20, (2,), (BF16,), prior=BF16, out=BF16),
    "everything under a norm": Call(5, 1, 20, (2,), (F32, BF16), prior=F32, added=F32, scale=1.7, norm=1.0),
    "a merge in bfloat16 under a norm": Call(1, 1, 37, (7,), (BF16,), prior=F32, added=BF16, out=BF16, norm=0.0),
    "a prior alone under a norm": Call(0, 1, 19, (4,), prior=BF16, scale=1.7, out=BF16, norm=1.0),
    "many sources under a norm": Call(9, 1, 33, (5,), vectors=BF16, gains=False, norm=0.0),
    "several queries, everything": Call(17, 5, 20, (2,), (BF16,), prior=BF16, scale=1.7, out=BF16),
}


def test_these_are_triton_s():
    assert native_backend("cpu") == "triton"


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_values_and_gradients(call):
    # where a GPU rounds to the nearest the interpreter cuts off, and so it rounds by up to twice as much
    assert_right(call.operator("triton"), call.exact, *call.inputs(), roundings=2)


@pytest.mark.parametrize("call", [replace(CALLS["a merge in bfloat16"], sources=3), CALLS["many sources under a norm"]])
def test_variants_of_the_backward_pass(call, monkeypatch):
    monkeypatch.setattr(triton_backend, "BACKWARD", triton_backend.VARIANTS[-1])
    assert_right(call.operator("triton"), call.exact, *call.inputs(), roundings=2)


@pytest.mark.parametrize(("of_y", "of_raw"), [(BF16, F32), (F32, F32), (BF16, BF16)])
def test_normalised_sums(of_y, of_raw):
    """A raw sum in bfloat16, here of larger numbers, has lost y: its gradient is not made of that."""

    def exact(y, total, raw):
        return total + y / (y.square().mean(-1, keepdim=True) + EPS).sqrt(), raw + y

    raw = torch.randn(2, 33) * (30 if of_raw == BF16 else 1)
    inputs = torch.randn(2, 33).to(of_y), torch.randn(2, 33), raw.to(of_raw)
    alone = lambda y, total: add_normalised(y, total, EPS, "triton")  # noqa: E731
    assert_right(alone, lambda y, total: exact(y, total, 0)[0], *inputs[:2], roundings=2)
    assert_right(lambda *x: add_both(*x, EPS, torch.float32, "triton"), exact, *inputs, roundings=2)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of the interpreter's numpy, also about rows that are none
@pytest.mark.parametrize(("size", "eps", "queries"), [(1e34, 1e-6, 1), (1e-25, 0.0, 2)])
def test_sources_whose_squares_float32_cannot_hold(size, eps, queries):
    assert_right_at(size, eps, 40, "triton", queries)
    assert_right_at(size, eps, 40, "triton", queries, gradient=1 / size)


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # of the interpreter's numpy
def test_bad_values_come_through_and_empty_batches():
    sources = make_sources(3, 2, 19)
    sources[1][1, 5] = float("nan")
    leaves = [x.requires_grad_() for x in sources]
    h = depth_attention(leaves, make_vector(19), backend="triton")
    assert h[1].isnan().any() and h[0].isfinite().all()
    for gradient in torch.autograd.grad(h.sum(), leaves):
        assert gradient[1].isnan().any() and gradient[0].isfinite().all()
    assert depth_attention([torch.zeros(0, 8)] * 2, torch.zeros(8), backend="triton").shape == (0, 8)
