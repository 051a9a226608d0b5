"""spec.md 13: two known traps, numbered as there.

Held elsewhere: 1 to 5, 8 and 10 (test_oracles.py), 6 (tests/train), 11 (test_every_connection.py), 9 and 13
(ops/test_torch_features.py), 12 (tests/hf).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from attnres import make_connection
from tests.depth import DIM, randomise, randomised


def test_7_keys_and_queries_are_not_rounded_to_bfloat16():
    connection = randomised("full", dim=64, sublayers=5)
    with torch.no_grad():
        for query in connection.query:
            query.mul_(4)
    sources = tuple(torch.randn(8, 64).bfloat16() for _ in range(6))
    exact = [
        (connection.query[5].double() * F.rms_norm(v.double(), (64,), connection.gain[5].double(), 1e-6)).sum(-1)
        for v in sources
    ]
    p = torch.stack(exact).softmax(0)
    expected = (p.unsqueeze(-1) * torch.stack(sources).double()).sum(0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        h = connection.readout(sources)
    # Exactly one rounding: at most half a unit in the last of bfloat16's eight bits, and float32 noise.
    assert ((h.double() - expected).abs() <= expected.abs() * 2**-8 + 1e-5).all()


def test_14_the_magnitude_is_right_and_not_only_the_direction():
    """All sources equal: whatever the weights, h must be that vector, to the last bits."""
    connection = make_connection("full", dim=DIM, sublayers=40)
    randomise(connection)
    v = torch.randn(3, DIM)
    for site in (0, 7, 39):
        torch.testing.assert_close(connection.mix((v,) * (site + 1), site)[1], v, rtol=2e-6, atol=1e-6)
