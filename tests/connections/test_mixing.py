"""Shapes and errors of mixing_matrix; that it is right is tested over every connection in tests/connections."""

from __future__ import annotations

import pytest
import torch

from attnres import UsageError, make_connection, mixing_matrix
from tests.depth import make_sublayers


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (0, 4)])
def test_shapes_follow_the_tokens(shape):
    connection, sublayers = make_connection("highway", dim=6, sites=3), make_sublayers(6, 3)
    x = torch.randn(*shape, 6)
    assert mixing_matrix(connection, x, sublayers).shape == (*shape, 4, 4)
    assert mixing_matrix(connection, x, sublayers, per_channel=True).shape == (*shape, 4, 4, 6)


def test_a_wrong_number_of_sublayers_is_refused():
    with pytest.raises(UsageError, match="has 3 sites, but 2 sublayers"):
        mixing_matrix(make_connection("full", dim=6, sites=3), torch.randn(6), make_sublayers(6, 2))


def test_the_activations_are_left_alone_and_no_graph_is_kept():
    connection = make_connection("full", dim=6, sites=3)
    x = torch.randn(2, 6, requires_grad=True)
    assert not mixing_matrix(connection, x, make_sublayers(6, 3)).requires_grad
    assert x.grad is None
