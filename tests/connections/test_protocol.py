"""What is no stream, no sublayer and no site is one line, and so is a sublayer that spoils the stream."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from attnres import UsageError, connection_names, make_connection, mixing_matrix
from attnres.connections import check_sublayers
from tests.depth import DIM, SITES, make_sublayers

every_connection = pytest.mark.parametrize("name", connection_names())


@every_connection
def test_sublayers_that_work_in_place_are_refused(name):
    """Values of `residual` are what the sublayer reads: it and the caller's embedding would change."""
    connection, x = make_connection(name, DIM, SITES), torch.randn(2, DIM)
    sublayers = [nn.Sequential(nn.ReLU(inplace=True), nn.Linear(DIM, DIM)) for _ in range(SITES)]
    with pytest.raises(UsageError, match="a sublayer changed its input in place"):
        connection.run(connection.start(x), sublayers)
    with torch.inference_mode():
        connection.run(connection.start(torch.randn(2, DIM)), make_sublayers())


@every_connection
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("buffers", [1, 2])
def test_one_buffer_for_the_outputs_of_all_calls_is_refused_where_it_matters(name, mode, buffers):
    """A rule that sums outputs up has no use for the buffer any more; one that keeps them would read the newest."""
    connection, x = make_connection(name, DIM, SITES), torch.randn(2, DIM)
    kept = [torch.zeros(2, DIM) for _ in range(buffers)]
    sublayers = [lambda h, *_, buffer=kept[k % buffers]: torch.mul(h, 2, out=buffer)[:] for k in range(SITES)]

    def read(sublayers, step):
        values = connection.start(x)
        for site in range(0, SITES, step):
            values = connection.run(values, sublayers[site : site + step], site)
        return connection.readout(values)

    with mode():
        right = read([lambda h, *_: 2 * h] * SITES, SITES)
        for step in (SITES, 1):
            refused = None
            try:
                torch.testing.assert_close(read(sublayers, step), right, rtol=1e-4, atol=1e-4)
            except UsageError as error:
                refused = str(error)
            keeps = name in ("delta", "full", "window")
            assert refused or not keeps
            assert refused is None or "a sublayer wrote into what an earlier one returned" in refused


def test_the_same_output_at_every_call_is_no_overwritten_one():
    zero, x = torch.zeros(2, DIM), torch.randn(2, DIM)
    for name in ("full", "delta", "residual"):
        connection = make_connection(name, DIM, SITES)
        connection.run(connection.start(x), [lambda h: zero] * (SITES - 2) + [lambda h: h] * 2)


@every_connection
def test_what_is_no_stream_no_sublayer_and_no_site(name):
    connection, x = make_connection(name, DIM, SITES), torch.randn(2, DIM)
    for wrong in (None, [1.0], connection.start(x), torch.tensor(1.0)):
        with pytest.raises(UsageError, match=r"starts with the embedding, a tensor \[..., dim\], not with a"):
            connection.start(wrong)
    for wrong in (x.long(), x.to(torch.complex64), x.bool()):
        with pytest.raises(UsageError, match="must be of a floating dtype, not torch"):
            connection.start(wrong)
    for wrong in (None, "attention", torch.ones(2)):
        with pytest.raises(UsageError, match="a sublayer must be a function of h, or a module, not "):
            connection.run(connection.start(x), [*make_sublayers(sites=1), wrong])
    for wrong in (None, torch.tanh):
        with pytest.raises(UsageError, match="sublayers must be a list of them, not one"):
            connection.run(connection.start(x), wrong)
    for wrong in (-1, 1.0, None):
        with pytest.raises(UsageError, match=f"first must be the site of the first sublayer, 0 to {SITES}, not "):
            connection.run(connection.start(x), [], first=wrong)
    with pytest.raises(UsageError, match=r"is not called: connection.readout\(connection.run\("):
        connection(x)


@every_connection
def test_values_that_are_none(name):
    connection, sublayers = make_connection(name, DIM, SITES), make_sublayers()
    with pytest.raises(UsageError, match=r"values are what start\(x\) returns, not x"):
        connection.run(torch.randn(2, DIM), sublayers)
    with pytest.raises(UsageError, match=f"has width {DIM}; what it was given has 5"):
        connection.run(connection.start(torch.randn(2, 5)), sublayers)


def test_a_sublayer_that_takes_one_of_several_reads():
    connection = make_connection("block:reads=qkv", DIM, SITES)
    with pytest.raises(UsageError, match="the site reads 3 mixtures, and its sublayer is called with so many tensors"):
        connection.run(connection.start(torch.randn(2, DIM)), [nn.Linear(DIM, DIM)] * SITES)
    with pytest.raises(TypeError, match="of its own"):
        connection.run(connection.start(torch.randn(2, DIM)), [lambda *h: raised(TypeError("of its own"))])


def raised(error):
    raise error


@every_connection
def test_what_most_sums_would_take_without_a_word(name):
    """A sum broadcasts one token's output to all, and one number to all channels; the first row of x is no stream."""
    connection, x = make_connection(name, DIM, SITES), torch.randn(2, 3, DIM)
    for wrong in (lambda h: h[:, -1:] * 2, lambda h: h.mean(-1, keepdim=True), lambda h: h[..., :1, :]):
        with pytest.raises(UsageError, match=rf"must return the shape that it reads, \[2, 3, {DIM}\], and returned"):
            connection.run(connection.start(x), [wrong] * SITES)
    for wrong in (torch.Tensor.long, lambda h: h.to(torch.complex64), lambda h: h.to("meta")):
        with pytest.raises(
            UsageError, match=r"a floating dtype on the device that it reads, torch.float32 on cpu, not"
        ):
            connection.run(connection.start(x), [wrong] * SITES)
    with pytest.raises(UsageError, match=r"values are what start\(x\) returns, not x"):
        connection.readout(x)
    with pytest.raises(UsageError, match=r"must be of a floating dtype, not torch.int64"):
        connection.run(connection.start(torch.ones(2, DIM, dtype=torch.int64)), make_sublayers())
    with pytest.raises(UsageError, match=f"has width {DIM}; what it was given has 3"):
        mixing_matrix(connection, torch.randn(2, 3), make_sublayers())
    with pytest.raises(UsageError, match="a list of them, not one Linear"):
        connection.run(connection.start(x), nn.Linear(DIM, DIM))


def test_a_sublayer_with_a_residual_of_its_own():
    def plain(h):
        return torch.tanh(nn.functional.rms_norm(h, (DIM,)))

    x = torch.randn(4, DIM)
    check_sublayers([plain, torch.nn.Linear(DIM, DIM), torch.zeros_like], x)
    for scale, dtype in ((1, torch.float32), (500, torch.float16), (500, torch.bfloat16)):
        check_sublayers([plain, torch.zeros_like], (scale * x).to(dtype))
        with pytest.raises(UsageError, match="sublayer 1 adds its input to its output"):
            check_sublayers([plain, lambda h: h + plain(h)], (scale * x).to(dtype))
