"""What the operators refuse: in words or, where a connection calls the kernel itself, before it touches memory."""

from __future__ import annotations

import pytest
import torch

from attnres.errors import UsageError
from attnres.ops import attend_blocks, depth_attention, library, merge_partial


def test_bad_input_is_named():
    x, q = torch.randn(2, 4), torch.randn(4)
    for match, call in {
        "one shape": lambda: depth_attention([x, torch.randn(3, 4)], q),
        "last size 4": lambda: depth_attention([x], q, torch.ones(5)),
        "float16 or float64, not int": lambda: depth_attention([x, x.int()], q),
        "'triton' cannot run on cpu": lambda: depth_attention([x], q, backend="triton"),
        r"\[S, d\]": lambda: attend_blocks([x], q),
        "lse_j must be": lambda: merge_partial(x, q, x, torch.randn(3)),
    }.items():
        with pytest.raises(UsageError, match=match):
            call()


FORWARD = {"sources": [(2, 16)], "queries": [(16,)], "gains": [], "prior": [], "added": []}
TOO_SMALL = [
    {"sources": [(2, 16), (3, 16)]},
    {"sources": [(2, 0)], "queries": [(0,)]},
    {"queries": [(32,)]},
    {"queries": [(4, 5)]},
    {"queries": [(4, 4)], "gains": [(16,)]},
    {"queries": [(4, 4)], "prior": [(2, 16), (2,)]},
    {"gains": [(8,)]},
    {"prior": [(2, 8), (2,)]},
    {"prior": [(2, 16), (3,)]},
    {"queries": [(16,), (16,)], "prior": [(2, 16), (2,)]},
    {"added": [(2, 8)]},
    {"added": [(2, 16), (2, 16)]},
]


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_sizes_that_do_not_fit_stop_at_the_kernel(kernel, device):
    """Every connection calls it with unchecked sizes, and it would write outside its memory."""

    def call(shapes):
        groups = [[torch.randn(shape, device=device) for shape in group] for group in shapes.values()]
        return library.attend(*groups, 1e-6, 1.0, torch.float32)

    assert len(call(FORWARD)[0]) == 1
    for wrong in TOO_SMALL:
        with pytest.raises((RuntimeError, UsageError), match="source"):
            call(FORWARD | wrong)
    x, q = torch.randn(2, 16, device=device), torch.randn(16, device=device)
    for queries, norm in (([q], q[:8]), ([q, q], q)):
        with pytest.raises((RuntimeError, UsageError), match="source"):
            library.attend([x], queries, [], [], [], 1e-6, 1.0, torch.float32, norm, 1e-6, 0.0)
