"""What runs under Triton's interpreter, in a process of its own that `test_triton.py` starts.

TRITON_INTERPRET=1 python -m pytest tests/ops/interpreted.py
"""

from __future__ import annotations

import os
from collections import Counter
from inspect import signature
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import triton.language as tl
from triton.runtime.interpreter import InterpretedFunction, InterpreterBuilder, TensorHandle

from attnres.ops import add_normalised, depth_attention, triton_backend
from attnres.ops.backends import native_backend
from tests.ops.cases import (
    BF16,
    EPS,
    F32,
    HUGE_AND_TINY,
    Call,
    assert_right,
    assert_right_at,
    make_sources,
    make_vector,
)
from tests.ops.launches import bytes_of

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
    "one query": Call(3, dim=7, tokens=(4,)),
    "one query, everything": Call(5, 1, 20, (2,), (F32, BF16), prior=F32, added=F32, scale=1.7),
    "a sum that is wider than what it is of": Call(1, 1, 20, (2,), (BF16,), prior=F32, added=BF16),
    "a merge in bfloat16": Call(1, 1, 20, (2,), (BF16,), prior=BF16, out=BF16),
    "several queries": Call(2, 3, 20, (4,)),
    "several queries, everything": Call(17, 5, 20, (2,), (BF16,), prior=BF16, scale=1.7, out=BF16),
}


def test_these_are_triton_s():
    assert native_backend("cpu") == "triton"


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_values_and_gradients(call):
    # where a GPU rounds to the nearest the interpreter cuts off, and so it rounds by up to twice as much
    assert_right(call.operator("triton"), call.exact, *call.inputs(), roundings=2)


@pytest.mark.parametrize("dtypes", [(F32,), (BF16, F32)], ids=["alone", "with a total"])
def test_normalised_sums(dtypes):
    def exact(y, total=0.0):
        return total + y / (y.square().mean(-1, keepdim=True) + EPS).sqrt()

    inputs = [torch.randn(2, 33).to(dtype) for dtype in dtypes]
    assert_right(lambda *x: add_normalised(*x, backend="triton"), exact, *inputs, roundings=2)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of the interpreter's numpy, also about rows that are none
@pytest.mark.parametrize("queries", [1, 2])
@pytest.mark.parametrize(("size", "eps", "dim"), HUGE_AND_TINY[1:])  # its tiles of 16 channels are slow at 1024
def test_sources_whose_squares_float32_cannot_hold(size, eps, dim, queries):
    assert_right_at(size, eps, dim, "triton", queries)
    assert_right_at(size, eps, dim, "triton", queries, gradient=1 / size)


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


COUNTED = {  # sources, queries, whether they merge and add, dtypes of the sources, dtype of the outputs
    "one query of many sources": (6, 1, False, False, (F32,), F32),
    "a sum and a merge": (1, 1, True, True, (BF16,), BF16),
    "a tile of two dtypes": (5, 2, False, False, (F32, BF16), F32),
    "several reads": (2, 3, True, False, (BF16,), BF16),
}


@pytest.fixture
def touched(monkeypatch):
    """By launch in order: the kernel, its arguments and the number of bytes it touches."""
    launches, addresses = [], set()
    run = InterpretedFunction.run
    load, store = InterpreterBuilder.create_masked_load, InterpreterBuilder.create_masked_store

    def noting(pointers, mask):
        size = pointers.get_element_ty().primitive_bitwidth // 8
        where, there = np.broadcast_arrays(pointers.data, mask.data.astype(bool))
        for byte in range(size):
            addresses.update((where[there] + np.uint64(byte)).tolist())

    def noting_load(self, pointers, mask, *rest):
        noting(pointers, mask)
        return load(self, pointers, mask, *rest)

    def noting_store(self, pointers, value, mask, *rest):
        noting(pointers, mask)
        return store(self, pointers, value, mask, *rest)

    def noting_run(self, *arguments, grid, warmup, **named):
        named.pop("num_warps", None)
        addresses.clear()
        run(self, *arguments, grid=grid, warmup=warmup, **named)
        bound = signature(self.fn).bind(*arguments, **named).arguments
        launches.append(SimpleNamespace(kernel=self, arguments=bound, name=self.fn.__name__, touched=len(addresses)))

    monkeypatch.setattr(InterpreterBuilder, "create_masked_load", noting_load)
    monkeypatch.setattr(InterpreterBuilder, "create_masked_store", noting_store)
    monkeypatch.setattr(InterpretedFunction, "run", noting_run)
    return launches


@pytest.mark.parametrize("case", COUNTED.values(), ids=COUNTED)
def test_each_byte_that_triton_touches_is_counted_once(touched, case):
    """What `launches.Traffic` counts is what the kernels touch."""
    n, s, merges, adds, dtypes, dtype = case
    sources = make_sources(n, 2, 24, dtypes=dtypes)
    added = [torch.randn(2, 24).to(dtypes[0])] if adds else []
    queries = [make_vector(24) for _ in range(s)]
    before = [torch.randn(2, 24) for _ in range(s * merges)]
    lses_before = [torch.randn(2) for _ in before]
    prior = [*before, *lses_before]
    outs, lses, sums, statistics = triton_backend.attend(sources, queries, queries, prior, added, 1e-6, 1.0, dtype)
    rounded = dtype != F32
    saved = outs if merges and not rounded else []
    prior = [*lses_before, *before] if rounded else lses_before
    sources[n - len(sums) :] = sums
    groups = outs, lses, [x.clone() for x in sums], sources, queries, queries, saved, lses, prior
    triton_backend.attend_backward(*groups, statistics, 1.0)
    counted, seen = bytes_of(touched), Counter()
    looked_up = 0  # in tables of addresses, which are not counted
    for launch in touched:
        if launch.name == "table_kernel":
            looked_up += launch.touched
        else:
            seen[launch.name] += launch.touched
    assert set(seen) == set(counted) and seen["forward_kernel"] > 0
    for name, count in counted.items():
        unread = 2 * n * 4 if name == "key_gradients_kernel" else 0  # of the slopes, those of the sources
        assert count - unread <= seen[name] <= count + looked_up, name
