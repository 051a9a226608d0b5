"""spec.md 13: known traps, each with a test that fails if it is sprung. Numbers are the section's.

6 (decay or Muon on queries) is also tested on the real optimizers in tests/train. 3, 5, 8 (test_oracles.py), 11
(test_every_connection.py), 9 and 13 (ops/test_torch_features.py) are held elsewhere; 12 is of conversions (tests/hf).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from attnres import Transformer, TransformerConfig, make_connection, mixing_matrix
from attnres.model import parameter_roles
from tests.depth import DIM, make_sublayers, randomise, randomised, trace


def start_matrix(name: str, sublayers: int, **options) -> torch.Tensor:
    connection = make_connection(name, dim=DIM, sublayers=sublayers, **options)
    return mixing_matrix(connection, torch.randn(DIM), make_sublayers(sublayers=sublayers))


def test_1_embedding_is_counted_once():
    matrix = start_matrix("block", 6, block_size=3)
    assert matrix[0, 0] == 1
    torch.testing.assert_close(matrix[1, :2], torch.tensor([1 / 2, 1 / 2]))
    torch.testing.assert_close(matrix[3, :4], torch.full((4,), 1 / 2))


def test_2_no_zero_vector_takes_part():
    connection = randomised("block", block_size=2)
    values = connection.start(torch.randn(3, DIM))
    for site, sublayer in enumerate(make_sublayers()):
        assert all(value.abs().sum() > 0 for value in values)
        torch.testing.assert_close(connection.weigh(values, site).sum(0), torch.ones(3, 1))
        values = connection.run(values, [sublayer], first=site)
    torch.testing.assert_close(start_matrix("block", 4, block_size=2)[2, :3], torch.full((3,), 1 / 2))


def test_4_queries_start_at_zero_and_read_the_mean():
    connection = make_connection("full", dim=DIM, sublayers=5)
    assert all(not query.any() for query in connection.query)
    sources, inputs = trace(connection, torch.randn(3, DIM), make_sublayers(sublayers=5))
    for site, h in enumerate(inputs):
        torch.testing.assert_close(h, torch.stack(sources[: site + 1]).mean(0))


def test_6_and_10_queries_are_vectors_of_their_own_role():
    model = Transformer(TransformerConfig(dim=16, layers=2, connection="full:query=input"))
    roles = parameter_roles(model)
    assert all(query.shape == (16,) for query in model.connection.query)
    assert {roles[name] for name in roles if name.startswith("connection.")} == {"connection", "channel map"}
    matrices = [name for name, role in roles.items() if role == "matrix"]
    assert len(matrices) == 2 * (4 + 3) and all(name.startswith("sublayers.") for name in matrices)


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
