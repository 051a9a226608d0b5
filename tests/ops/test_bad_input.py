"""What the operators refuse, in words or, where a connection calls the kernel itself, before it touches memory."""

from __future__ import annotations

import pytest
import torch

from attnres.errors import UsageError
from attnres.ops import add_normalised, attend_blocks, backends, depth_attention, library, merge_partial


def test_bad_input_is_named():
    x, q = torch.randn(2, 4), torch.randn(4)
    with pytest.raises(UsageError, match="at least one"):
        depth_attention([], q)
    for sources, query in (([x], [0.0] * 4), ([x.numpy()], q), ({0: x}, q)):
        with pytest.raises(UsageError, match=r"must be tensors, not (list|ndarray|int)"):
            depth_attention(sources, query)
    with pytest.raises(UsageError, match="one shape"):
        depth_attention([x, torch.randn(3, 4)], q)
    with pytest.raises(UsageError, match="one shape"):
        depth_attention([torch.tensor(1.0)], q)
    with pytest.raises(UsageError, match="last size 4"):
        depth_attention([x], torch.randn(1, 4))
    with pytest.raises(UsageError, match="last size 4"):
        depth_attention([x], q, torch.ones(5))
    with pytest.raises(UsageError, match="backend must be one of"):
        depth_attention([x], q, backend="cuda")
    with pytest.raises(UsageError, match="'triton' cannot run on cpu"):
        depth_attention([x], q, backend="triton")
    with pytest.raises(UsageError, match=r"\[S, d\]"):
        attend_blocks([x], q)
    with pytest.raises(UsageError, match="last size 4"):
        attend_blocks([x], torch.randn(2, 5))
    with pytest.raises(UsageError, match="one shape"):
        merge_partial(x, q, torch.randn(3, 4), torch.randn(2))
    with pytest.raises(UsageError, match="lse_j must be"):
        merge_partial(x, q, x, torch.randn(3))
    for sources, query in (([x, x.int()], q), ([x], q.long())):
        with pytest.raises(UsageError, match="float16 or float64, not int"):
            depth_attention(sources, query)
    with pytest.raises(UsageError, match="float16 or float64, not NoneType"):
        depth_attention([x, None], q)
    with pytest.raises(UsageError, match="float16 or float64, not float8"):
        depth_attention([x.to(torch.float8_e4m3fn)], q)
    with pytest.raises(UsageError, match="d of at least 1"):
        attend_blocks([torch.zeros(2, 0)], torch.zeros(1, 0))
    with pytest.raises(UsageError, match=r"dtype must be float32, .* or float64, not torch\.int32"):
        merge_partial(x, q, x, torch.randn(2), dtype=torch.int32)
    with pytest.raises(UsageError, match="y and total must be float32"):
        add_normalised(x.int())
    with pytest.raises(UsageError, match=r"sources on meta cannot take \[4\] on cpu"):
        depth_attention([x.to("meta")], q)
    for eps in (-1e-6, float("nan"), "1e-6", None):
        with pytest.raises(UsageError, match="eps must be a number of at least 0"):
            attend_blocks([x], q[None], eps)


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize(
    ("sources", "queries", "gains", "prior"),
    [
        ([(2, 16)], [(32,)], [], []),
        ([(2, 16)], [(16,)], [(8,)], []),
        ([(2, 16), (3, 16)], [(16,)], [], []),
        ([(2, 16)], [(16,)], [], [(2, 8), (2,)]),
        ([(2, 16)], [(16,)], [], [(2, 16), (3,)]),
        ([(2, 16)], [(16,), (16,)], [], [(2, 16), (2, 16), (2,), (3,)]),
        ([(2, 16)], [(16,), (16,)], [], [(2, 16), (2,)]),
        ([(2, 0)], [(0,)], [], []),
    ],
)
def test_sizes_that_do_not_fit_stop_at_the_kernel(sources, queries, gains, prior, device):
    """It is called with unchecked sizes by every connection, and would write outside its memory."""
    backends.native_backend("cpu")
    groups = [[torch.randn(shape, device=device) for shape in group] for group in (sources, queries, gains, prior)]
    with pytest.raises((RuntimeError, UsageError), match="source"):
        library.attend(*groups, [], 1e-6, 1.0, torch.float32)


BACKWARD = {  # grad_outs, .. of two sources [5, 16] and one query that merges a prior
    "grad_outs": [(5, 16)],
    "grad_lses": [(5,)],
    "grad_sums": [(5, 16)],
    "sources": [(5, 16), (5, 16)],
    "queries": [(16,)],
    "gains": [(16,)],
    "outs": [(5, 16)],
    "lses": [(5,)],
    "prior": [(5,)],
    "statistics": [(5, 4)],
}


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("grad_outs", []),
        ("grad_outs", [(5, 8)]),
        ("grad_outs", [(4, 16)]),
        ("grad_lses", [(4,)]),
        ("grad_lses", [(5,), (5,)]),
        ("grad_sums", [(5, 8)]),
        ("grad_sums", [(5, 16), (5, 16)]),
        ("sources", [(5, 16), (6, 16)]),
        ("queries", [(8,)]),
        ("gains", [(8,)]),
        ("outs", [(5, 8)]),
        ("outs", []),
        ("lses", []),
        ("lses", [(4,)]),
        ("prior", [(4,)]),
        ("prior", [(5,), (5, 16)]),
        ("statistics", [(5, 3)]),
        ("statistics", [(4, 4)]),
    ],
)
def test_gradients_of_sizes_that_do_not_fit_stop_at_the_kernel(name, shapes, device):
    backends.native_backend("cpu")

    def call(shapes):
        *groups, (statistics,) = [[torch.randn(shape, device=device) for shape in group] for group in shapes.values()]
        return library.attend_backward(*groups, statistics, 1.0)

    assert len(call(BACKWARD)[3]) == 2
    with pytest.raises((RuntimeError, UsageError), match="source"):
        call(BACKWARD | {name: shapes})


def test_a_tensor_on_another_device_stops_at_the_kernel():
    x, q = torch.randn(2, 4), torch.randn(4, device="meta")
    with pytest.raises(UsageError, match=r"on cpu cannot take \[4\] on meta"):
        depth_attention([x], q)
