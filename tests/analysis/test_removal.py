"""The loss that a sublayer which is switched off adds, against models without it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from attnres.analysis import added_losses
from attnres.connections import canonical_connection
from attnres.model import Transformer, TransformerConfig

SITES = 6


def model_of(name: str, **options) -> Transformer:
    connection = canonical_connection(name, **options)
    config = TransformerConfig(dim=16, layers=SITES // 2, heads=2, context=16, connection=connection, norm_eps=1e-12)
    model = Transformer(config).double().eval()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.connection.parameters():
            parameter.add_(0.5 * torch.randn(parameter.shape, generator=generator))
        for sublayer in model.sublayers:
            sublayer.out.weight.mul_(4)
        model.head.weight.mul_(20)
    return model


def batch(seed: int = 0, sequences: int = 3) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (sequences, 13))


def loss_of(model: Transformer, hidden: torch.Tensor, tokens: np.ndarray) -> float:
    return F.cross_entropy(model.logits(hidden).flatten(0, 1), torch.from_numpy(tokens)[:, 1:].flatten()).item()


@pytest.mark.parametrize("name", ["highway", "mhc", "block", "delta"])
@torch.no_grad()
def test_a_sublayer_that_is_off_is_one_whose_output_matrix_is_zero(name):
    """The same for every connection, against the whole model run again; over two batches of unequal size."""
    model = model_of(name)
    batches = [batch(), batch(1, 1)]
    base, added = added_losses(model, batches)

    def mean_loss() -> float:
        losses = [loss_of(model, model.hidden(torch.from_numpy(part[:, :-1])), part) for part in batches]
        return (3 * losses[0] + losses[1]) / 4

    assert base == pytest.approx(mean_loss(), rel=1e-6)
    for site in range(SITES):
        weight = model.sublayers[site].out.weight
        kept = weight.clone()
        weight.zero_()
        assert base + added[site] == pytest.approx(mean_loss(), rel=1e-6)
        weight.copy_(kept)
    assert np.abs(added).max() > 1e-3
