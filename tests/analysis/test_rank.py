"""Ranks of depth mixing matrices against what theory says of each connection."""

import numpy as np
import pytest
import torch

from attnres import make_connection, mixing_matrix
from attnres.analysis.rank import semiseparable_rank

SITES, DIM = 8, 16


def matrix_of(name, spread=0.5, **options):
    torch.manual_seed(0)
    connection = make_connection(name, DIM, SITES, **options)
    with torch.no_grad():
        for parameter in connection.parameters():
            parameter.add_(spread * torch.randn_like(parameter))
    maps = [torch.randn(DIM, DIM) / DIM**0.5 for _ in range(SITES)]
    sublayers = [lambda h, w=w: torch.tanh(h @ w) for w in maps]
    return (
        mixing_matrix(
            connection.double(), torch.randn(3, DIM).double(), [lambda h, f=f: f(h.float()).double() for f in sublayers]
        )
        .detach()
        .numpy()
    )


@pytest.mark.parametrize(
    ("name", "options", "rank"),
    [("residual", {}, 1), ("rezero", {}, 1), ("hc", {"streams": 2}, 2), ("mhc", {"streams": 3}, 3)],
)
def test_streams_bound_the_semiseparable_rank(name, options, rank):
    assert (semiseparable_rank(matrix_of(name, **options)) <= rank).all()


def test_dense_mixing_has_more_than_any_small_number_of_streams():
    assert (semiseparable_rank(matrix_of("full")) >= 4).all()


def test_the_plain_residual_is_one_semiseparable_but_of_full_rank():
    plain = np.tril(np.ones((6, 6)))
    assert semiseparable_rank(plain) == 1 and np.linalg.matrix_rank(plain) == 6
