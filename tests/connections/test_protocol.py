"""What is no stream, no sublayer and no site is refused where the numbers would be wrong in silence."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from attnres import UsageError, make_connection, mixing_matrix
from attnres.connections import check_sublayers
from tests.depth import DIM, SITES, make_sublayers, randomised

with_two_runs = pytest.mark.parametrize("name", ["residual", "block"])
"""The base class's `run`, and the one in two phases."""


@pytest.mark.parametrize(
    ("name", "mode"), [("delta", torch.no_grad), ("full", torch.inference_mode), ("window", torch.no_grad)]
)
def test_one_buffer_for_the_outputs_of_all_calls_is_refused(name, mode):
    """A rule that keeps outputs would read the newest in place of each."""
    x, kept = torch.randn(2, DIM), torch.zeros(2, DIM)
    sublayers = [lambda h, *_: torch.mul(h, 2, out=kept)[:]] * SITES

    def read(sublayers, step):
        connection = make_connection(name, DIM, SITES)  # its first pass is the one that is looked at
        values = connection.start(x)
        for site in range(0, SITES, step):
            values = connection.run(values, sublayers[site : site + step], site)
        return connection.readout(values)

    with mode():
        for step in (SITES, 1):
            with pytest.raises(UsageError, match="a sublayer wrote into what an earlier one returned"):
                read(sublayers, step)


@with_two_runs
def test_a_connection_is_called_with_the_embedding_and_all_its_sublayers(name):
    connection, x, sublayers = randomised(name), torch.randn(2, DIM), make_sublayers()
    read = connection.readout(connection.run(connection.start(x), sublayers))
    torch.testing.assert_close(connection(x, sublayers), read, rtol=0, atol=0)
    with pytest.raises(ValueError, match=f"has {SITES} sublayers"):
        connection(x, sublayers[1:])


@with_two_runs
def test_sublayers_that_work_in_place_are_refused(name):
    """Values of `residual` are what the sublayer reads: it and the caller's embedding would change."""
    connection, x = make_connection(name, DIM, SITES), torch.randn(2, DIM)
    sublayers = [nn.Sequential(nn.ReLU(inplace=True), nn.Linear(DIM, DIM)) for _ in range(SITES)]
    with pytest.raises(UsageError, match="a sublayer changed its input in place"):
        connection.run(connection.start(x), sublayers)
    with torch.inference_mode():
        connection.run(connection.start(torch.randn(2, DIM)), make_sublayers())


@with_two_runs
def test_what_a_sum_would_take_silently(name):
    """A sum broadcasts one token's output to all, and one number to all channels; the first row of x is no stream."""
    connection, x = make_connection(name, DIM, SITES), torch.randn(2, 3, DIM)
    for wrong in (lambda h: h[:, -1:] * 2, lambda h: h.mean(-1, keepdim=True), lambda h: h[..., :1, :]):
        with pytest.raises(UsageError, match="must return the shape that it reads"):
            connection.run(connection.start(x), [wrong] * SITES)
    for wrong in (torch.Tensor.long, lambda h: h.to("meta")):
        with pytest.raises(UsageError, match="a floating dtype on the device that it reads"):
            connection.run(connection.start(x), [wrong] * SITES)
    for take in (connection.readout, lambda x: connection.run(x, make_sublayers())):
        with pytest.raises(UsageError, match=r"values are what start\(x\) returns, not x"):
            take(x)
    with pytest.raises(UsageError, match=f"has width {DIM}; what it was given has 5"):
        connection.run(connection.start(torch.randn(2, 5)), make_sublayers())
    with pytest.raises(UsageError, match=f"has width {DIM}; what it was given has 3"):
        mixing_matrix(connection, torch.randn(2, 3), make_sublayers())


def test_a_sublayer_with_a_residual_of_its_own():
    def plain(h):
        return torch.tanh(nn.functional.rms_norm(h, (DIM,)))

    x = torch.randn(4, DIM)
    check_sublayers([plain, torch.nn.Linear(DIM, DIM), torch.zeros_like], x)
    for scale, dtype in ((1, torch.float32), (500, torch.float16), (500, torch.bfloat16)):
        check_sublayers([plain, torch.zeros_like], (scale * x).to(dtype))
        with pytest.raises(UsageError, match="sublayer 1 adds its input to its output"):
            check_sublayers([plain, lambda h: h + plain(h)], (scale * x).to(dtype))
