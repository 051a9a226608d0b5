"""`TwoPhase.run` reads the finished blocks once per tile; it must equal the rule applied site by site."""

from __future__ import annotations

import copy

import pytest
import torch

from attnres.connections import Connection, make_connection, two_phase
from attnres.connections.rules import block
from attnres.connections.two_phase import TILE
from attnres.ops import attend, read
from tests.depth import make_sublayers, randomise

DIM, SITES = 20, 11
CASES = [
    ("full", {}),
    ("block", {"block_size": 5}),
    ("delta", {"block_size": 3, "reads": "qkv", "gate": True}),
    ("haares", {"block_size": 3, "reads": "qkv-gate-up"}),
]


def results(connection, x, run) -> list[torch.Tensor]:
    """The readout, then the gradients of the embedding and of each parameter."""
    connection.zero_grad()
    x = x.detach().clone().requires_grad_()
    h = connection.readout(run(connection.start(x)))
    (h * torch.linspace(-1, 1, h.numel()).view_as(h)).double().sum().backward()
    # A query that weighs a single source has no gradient, or zero.
    return [h.detach(), x.grad, *(torch.zeros_like(p) if p.grad is None else p.grad for p in connection.parameters())]


@pytest.mark.parametrize(("name", "options"), CASES, ids=str)
def test_equals_site_by_site(name, options):
    """Over three tiles and in float64; tests/connections has every rule, and splits, on fewer sites."""
    connection = make_connection(name, dim=DIM, sublayers=SITES, **options).double()
    sublayers, x = make_sublayers(DIM, SITES), torch.randn(2, 9, DIM, dtype=torch.float64)
    randomise(connection)
    expected = results(connection, x, lambda values: Connection.run(connection, values, sublayers))
    found = results(connection, x, lambda values: connection.run(values, sublayers))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-11 * max(1.0, float(expected[1].abs().max())))


@pytest.mark.parametrize(("stream", "output"), [(torch.float32, torch.bfloat16), (torch.bfloat16, torch.bfloat16)])
def test_every_sublayer_is_given_the_stream_s_dtype(stream, output):
    connection = make_connection("block", dim=DIM, sublayers=SITES, block_size=3)
    randomise(connection)
    seen = []
    sublayers = [lambda h, f=f: (seen.append(h.dtype), f(h).to(output))[1] for f in make_sublayers(DIM, SITES)]
    x = torch.randn(9, DIM, dtype=stream)
    expected = results(connection, x, lambda values: Connection.run(connection, values, sublayers))
    found = results(connection, x, lambda values: connection.run(values, sublayers))
    for one, other in zip(found[:2], expected[:2], strict=True):  # rounded to bfloat16 at each of eleven sites
        assert (one.float() - other.float()).norm() <= SITES * 2**-9 * other.float().norm()
    assert set(seen) == {stream} and len(seen) == 2 * SITES


def test_the_bank_is_read_once_per_tile(monkeypatch):
    """The point of it: as many reads of finished blocks as there are tiles, and not as there are sites."""
    connection, sublayers = make_connection("full", dim=DIM, sublayers=SITES), make_sublayers(DIM, SITES)
    reads = []

    def counted(operator):
        def call(sources, *rest, **more):
            reads.append(len(sources))
            return operator(sources, *rest, **more)

        return call

    monkeypatch.setattr(block, "read", counted(read))
    monkeypatch.setattr(two_phase, "attend", counted(attend))
    connection.run(connection.start(torch.randn(9, DIM)), sublayers)
    phase_1 = [1 + site for site in range(0, SITES, TILE)]
    assert sum(reads) == sum(phase_1) + sum(site % TILE for site in range(SITES))


@pytest.mark.parametrize("method", ["scatter", "absorb"])
def test_a_rule_that_takes_outputs_up_in_its_own_way_is_asked(method):
    def halved(self, values, weights, site, h, y):
        return getattr(block.Block, method)(self, values, weights, site, h, y / 2)

    connection, sublayers = type("Halved", (block.Block,), {method: halved})(DIM, SITES), make_sublayers(DIM, SITES)
    randomise(connection)
    connection.double()
    x = torch.randn(9, DIM, dtype=torch.float64)
    expected = results(connection, x, lambda values: Connection.run(connection, values, sublayers))
    for one, other in zip(
        results(connection, x, lambda values: connection.run(values, sublayers)), expected, strict=True
    ):
        torch.testing.assert_close(one, other)


def test_rounding_phase_1(kernel):
    """A bfloat16 stack against float64: the option adds less than the stream's own roundings, and keeps less."""
    dim, sites = 64, 12
    sublayers, x = make_sublayers(dim, sites), torch.randn(50, dim).bfloat16()
    errors, kept = [], []
    for rounds in (False, True):
        connection = make_connection("block", dim=dim, sublayers=sites, block_size=4, round_phase_1=rounds)
        randomise(connection)
        exact = copy.deepcopy(connection).double()
        saved: dict[int, int] = {}

        def run(values, connection=connection, saved=saved):
            keep = lambda v: (saved.update({v.data_ptr(): v.nbytes if v.numel() == x.numel() else 0}), v)[1]  # noqa: E731
            with torch.autograd.graph.saved_tensors_hooks(keep, lambda v: v):
                return connection.run(values, sublayers)

        pairs = zip(
            results(connection, x, run),
            results(exact, x.double(), lambda values, exact=exact: exact.run(values, sublayers)),
            strict=True,
        )
        h, of_x, *of_parameters = [(one.double(), other) for one, other in pairs]
        together = tuple(torch.cat(of_one) for of_one in zip(*of_parameters, strict=True))
        errors.append([float((one - other).norm() / other.norm()) for one, other in (h, of_x, together)])
        kept.append(sum(saved.values()))
    for without, rounded in zip(*errors, strict=True):
        assert 0 < rounded < 1.5 * without, "one rounding more beside those of every site's h"
    assert kept[1] < 0.8 * kept[0]
