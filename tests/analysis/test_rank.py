"""Ranks of depth mixing matrices against what theory says of each connection."""

import numpy as np
import pytest
import torch

from attnres import mixing_matrix
from attnres.analysis.rank import semiseparable_rank
from tests.depth import DIM, make_sublayers, randomised


def matrix_of(name, **options):
    connection = randomised(name, **options).double()
    return mixing_matrix(connection, torch.randn(3, DIM).double(), make_sublayers()).numpy()


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
