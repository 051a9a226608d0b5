"""Newton-Schulz against torch's and, where products are float32's, against float64's with the same roundings."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.optim._muon import _zeropower_via_newtonschulz as torchs

from attnres.ops import newton_schulz
from attnres.ops.newton_schulz import orthogonalise

COEFFICIENTS = (3.4445, -4.775, 2.0315)
SHAPES = [(8, 8), (16, 64), (40, 33)]


def stack(shape: tuple[int, int], number: int = 3) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator) * 10.0**power for power in range(number)]


def in_float64(matrix: Tensor, steps: int) -> Tensor:
    a, b, c = COEFFICIENTS

    def rounded(x: Tensor) -> Tensor:
        return x.bfloat16().double()

    x = rounded(matrix.T if matrix.shape[0] > matrix.shape[1] else matrix)
    x = rounded(x / rounded(x.square().sum().sqrt()))
    for _ in range(steps):
        gram = rounded(x @ x.T)
        x = rounded(a * x + rounded(b * gram + c * gram @ gram) @ x)
    return x.T if matrix.shape[0] > matrix.shape[1] else x


@pytest.mark.parametrize("shape", SHAPES)
def test_it_is_torchs_bit_for_bit_where_bfloat16_is_multiplied(shape, monkeypatch):
    monkeypatch.setattr(newton_schulz, "cpu_multiplies_bfloat16", lambda: True)
    matrices = stack(shape)
    for matrix, result in zip(matrices, orthogonalise(matrices, COEFFICIENTS, 5, 1e-7), strict=True):
        assert torch.equal(result, torchs(matrix, COEFFICIENTS, 5, 1e-7))


@pytest.mark.parametrize("shape", SHAPES)
def test_products_of_float32_are_rounded_where_those_of_bfloat16_are(shape, monkeypatch):
    monkeypatch.setattr(newton_schulz, "cpu_multiplies_bfloat16", lambda: False)
    matrices = stack(shape)
    for steps in (1, 5):
        for matrix, result in zip(matrices, orthogonalise(matrices, COEFFICIENTS, steps, 1e-7), strict=True):
            expected = in_float64(matrix, steps)
            assert result.dtype == torch.bfloat16 and result.shape == matrix.shape
            torch.testing.assert_close(result.double(), expected, atol=2e-2, rtol=0)
            if steps == 1:  # a number that rounds the other way moves all of them in the next step
                assert (result.double() == expected).double().mean() >= 0.99


def test_the_matrices_given_are_left_as_they_are():
    matrices = stack((8, 4))
    before = [matrix.clone() for matrix in matrices]
    orthogonalise(matrices, COEFFICIENTS, 5, 1e-7)
    assert all(map(torch.equal, matrices, before))
