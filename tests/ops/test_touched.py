"""The bytes that `attnres bench traffic` counts are those that the Triton kernels touch, seen in its interpreter."""

from __future__ import annotations

from collections import Counter
from inspect import signature
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tests.ops.cases import FUSED, make_sources, make_vector

pytest.importorskip("triton")
from attnres.bench.traffic import bytes_of
from attnres.ops import triton_backend

CASES = {  # sources, queries, whether they merge and add, dtypes of the sources, dtype of the outputs
    "one query": (5, 1, False, False, (torch.bfloat16,), torch.bfloat16),
    "one query of many sources": (6, 1, False, False, (torch.float32,), torch.float32),
    "a merge": (1, 1, True, False, (torch.bfloat16,), torch.bfloat16),
    "a merge in float32": (1, 1, True, False, (torch.float32,), torch.float32),
    "a sum and a merge": (1, 1, True, True, (torch.bfloat16,), torch.bfloat16),
    "a sum and a merge in float32": (2, 1, True, True, (torch.float32,), torch.float32),
    "a sum and a query of many sources": (6, 1, False, True, (torch.bfloat16,), torch.bfloat16),
    "a tile": (3, 3, False, False, (torch.bfloat16,), torch.float32),
    "a tile of two dtypes": (5, 2, False, False, (torch.float32, torch.bfloat16), torch.float32),
    "several reads": (2, 3, True, False, (torch.bfloat16,), torch.bfloat16),
}


@pytest.fixture
def touched(monkeypatch):
    """By launch in order: the kernel, its arguments and the number of bytes it touches."""
    from triton.runtime.interpreter import InterpretedFunction, InterpreterBuilder

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


@pytest.mark.skipif(FUSED != "triton", reason="runs under Triton's interpreter, from test_triton.py")
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_each_byte_that_triton_touches_is_counted_once(touched, case):
    n, s, merges, adds, dtypes, dtype = case
    sources = make_sources(n, 3, 24, dtypes=dtypes)
    added = [torch.randn(3, 24).to(dtypes[0])] if adds else []
    queries = [make_vector(24) for _ in range(s)]
    before = [torch.randn(3, 24) for _ in range(s * merges)]
    lses_before = [torch.randn(3) for _ in before]
    prior = [*before, *lses_before]
    outs, lses, sums, statistics = triton_backend.attend(sources, queries, queries, prior, added, 1e-6, 1.0, dtype)
    rounded = dtype != torch.float32
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
        unread = 3 * n * 4 if name == "key_gradients_kernel" else 0  # of the slopes, those of the sources
        assert count - unread <= seen[name] <= count + looked_up, name
