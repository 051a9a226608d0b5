"""`TwoPhase.run` reads the finished blocks once per tile; it must equal the rule applied site by site."""

from __future__ import annotations

import pytest
import torch

from attnres.connections import Connection, _two_phase, block, make_connection
from attnres.connections._two_phase import TILE
from attnres.ops import attend, attend_outs
from tests.depth import make_sublayers, randomise
from tests.ops.cases import assert_near

DIM, SITES = 20, 11
FLOOR = {"haares": 0.1}
"""By name, the norm from which on gradients are compared: that of one number is a sum that cancels."""
CASES = [
    ("full", {}),
    *(("block", {"block_size": size}) for size in (1, 2, 3, 4, 5, 11, 40)),
    ("block", {"block_size": 3, "reads": "qkv-gate-up"}),
    ("rms-block", {"block_size": 2}),
    ("delta", {}),
    ("delta", {"block_size": 3, "reads": "qkv"}),
    ("delta", {"block_size": 3, "reads": "qkv", "gate": True}),
    ("haares", {"block_size": 2}),
    ("haares", {"block_size": 3, "reads": "qkv-gate-up"}),
]
every_case = pytest.mark.parametrize(("name", "options"), CASES, ids=str)


def results(connection, x, run) -> list[torch.Tensor]:
    """The readout, then the gradients of the embedding and of each parameter."""
    connection.zero_grad()
    x = x.detach().clone().requires_grad_()
    h = connection.readout(run(connection.start(x)))
    (h.float() * torch.linspace(-1, 1, h.numel()).view_as(h)).sum().backward()
    # A query that weighs a single source has no gradient, or zero.
    return [h.detach(), x.grad, *(torch.zeros_like(p) if p.grad is None else p.grad for p in connection.parameters())]


@every_case
def test_equals_site_by_site(name, options):
    connection, sublayers = make_connection(name, dim=DIM, sites=SITES, **options), make_sublayers(DIM, SITES)
    randomise(connection)
    x = torch.randn(2, 9, DIM)
    expected = results(connection, x, lambda values: Connection.run(connection, values, sublayers))
    assert_near(
        results(connection, x, lambda values: connection.run(values, sublayers)), expected, floor=FLOOR.get(name, 1e-3)
    )


@every_case
def test_begins_and_ends_anywhere(name, options):
    """A run may begin within a block and end within one: pipeline stages and checkpointed pieces do."""
    connection, sublayers = make_connection(name, dim=DIM, sites=SITES, **options), make_sublayers(DIM, SITES)
    randomise(connection)
    x = torch.randn(9, DIM)
    expected = results(connection, x, lambda values: connection.run(values, sublayers))

    def in_pieces(values, cuts):
        for begin, end in zip((0, *cuts), (*cuts, SITES), strict=True):
            values = connection.run(values, iter(sublayers[begin:end]), first=begin)
        return values

    floor = FLOOR.get(name, 1e-3)
    for cuts in ((1,), (2,), (3, 5), (4, 4), (6, 7, 10), tuple(range(1, SITES))):
        assert_near(results(connection, x, lambda values, cuts=cuts: in_pieces(values, cuts)), expected, floor=floor)


@pytest.mark.parametrize(("stream", "output"), [(torch.float32, torch.bfloat16), (torch.bfloat16, torch.bfloat16)])
def test_every_sublayer_is_given_the_stream_s_dtype(stream, output):
    connection = make_connection("block", dim=DIM, sites=SITES, block_size=3)
    randomise(connection)
    seen = []
    sublayers = [lambda h, f=f: (seen.append(h.dtype), f(h).to(output))[1] for f in make_sublayers(DIM, SITES)]
    x = torch.randn(9, DIM, dtype=stream)
    expected = results(connection, x, lambda values: Connection.run(connection, values, sublayers))
    assert_near(results(connection, x, lambda values: connection.run(values, sublayers)), expected, 2e-2, floor=1e-3)
    assert set(seen) == {stream} and len(seen) == 2 * SITES


def test_the_bank_is_read_once_per_tile(monkeypatch):
    """The point of it: as many reads of finished blocks as there are tiles, and not as there are sites."""
    connection, sublayers = make_connection("full", dim=DIM, sites=SITES), make_sublayers(DIM, SITES)
    reads = []

    def counted(operator):
        def call(sources, *rest, **more):
            reads.append(len(sources))
            return operator(sources, *rest, **more)

        return call

    monkeypatch.setattr(block, "attend_outs", counted(attend_outs))
    monkeypatch.setattr(_two_phase, "attend", counted(attend))
    connection.run(connection.start(torch.randn(9, DIM)), sublayers)
    phase_1 = [1 + site for site in range(0, SITES, TILE)]
    assert sum(reads) == sum(phase_1) + sum(site % TILE for site in range(SITES))
