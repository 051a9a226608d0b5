"""The depth profile against models written out here and against what can be worked out by hand."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from attnres import Transformer, TransformerConfig, mixing_matrix
from attnres.analysis import depth_profile
from attnres.connections import canonical_connection
from tests.depth import in_blocks

LAYERS = 3
SITES = 2 * LAYERS


def tiny(connection: str, randomised: bool = True, **options) -> Transformer:
    connection = canonical_connection(connection if options else in_blocks(connection), **options)
    config = TransformerConfig(vocab_size=11, dim=8, layers=LAYERS, heads=2, context=16, connection=connection)
    model = Transformer(config, seed=3)
    if randomised:
        generator = torch.Generator().manual_seed(5)
        with torch.no_grad():
            for parameter in model.connection.parameters():
                parameter.add_(0.5 * torch.randn(parameter.shape, generator=generator))
    return model


@pytest.fixture
def tokens() -> torch.Tensor:
    return torch.randint(11, (2, 7), generator=torch.Generator().manual_seed(1))


def naive_sources(model: Transformer, read: torch.Tensor, targets: torch.Tensor, rule):
    """sources, inputs and gradients of the summed loss, of a model whose sites read rule(sources, site)."""
    sources = [model.embedding(read)]
    inputs = []
    for site, sublayer in enumerate(model.bound_sublayers(read.shape[1])):
        inputs.append(rule(sources, site))
        sources.append(sublayer(inputs[-1]))
    inputs.append(rule(sources, SITES))
    for source in sources:
        source.retain_grad()
    F.cross_entropy(model.logits(inputs[-1]).flatten(0, 1), targets.flatten(), reduction="sum").backward()
    return sources, inputs, [source.grad for source in sources]


def mean_rms(tensors) -> list[float]:
    return [float(t.detach().square().mean(-1).sqrt().mean()) for t in tensors]


def test_residual_has_all_ones_and_uniform_shares(tokens):
    profile = depth_profile(tiny("residual"), tokens)
    np.testing.assert_allclose(profile.entropy, profile.entropy_limit, atol=1e-6)
    np.testing.assert_allclose(profile.embedding_share, 1 / np.arange(1, SITES + 2), rtol=1e-6)
    np.testing.assert_allclose(profile.equal_share, profile.source_share, rtol=1e-6)
    assert profile.sinks() == []  # it cannot choose, however large the first sources' shares are


def test_sinks_are_what_many_sites_give_more_than_an_equal_share(tokens):
    profile = depth_profile(tiny("full"), tokens)
    sites = SITES + 1
    share = np.tril(np.ones((sites, sites)))
    share[2:, 2] = 3  # layer 0 MLP: every site that sees it gives it three times what it gives the others
    share[-1, -1] = 50  # the readout alone reads the last sublayer, whatever that holds
    share /= share.sum(1, keepdims=True)
    profile = dataclasses.replace(profile, mean_share=share)
    ((name, value, excess),) = profile.sinks()
    assert name == "layer 0 MLP" and value == pytest.approx(share[2:, 2].mean())
    assert excess == pytest.approx(share[2:, 2].mean() / np.mean([1 / (site + 1) for site in range(2, sites)]))


def softmax_rule(model: Transformer):
    """Full Attention Residuals, written from spec.md 3."""
    connection = model.connection

    def rule(sources, site):
        stack = torch.stack(sources)
        keys = stack / (stack.square().mean(-1, keepdim=True) + 1e-6).sqrt() * connection.gain[site]
        weights = (keys @ connection.query[site]).softmax(0)
        return (weights[..., None] * stack).sum(0)

    return rule


def test_magnitudes_and_gradients_equal_a_naive_model(tokens):
    model = tiny("full")
    sources, inputs, gradients = naive_sources(model, tokens[:, :-1], tokens[:, 1:], softmax_rule(model))
    profile = depth_profile(model, tokens)
    np.testing.assert_allclose(profile.output_rms, mean_rms(sources), rtol=1e-4)
    np.testing.assert_allclose(profile.input_rms, mean_rms(inputs), rtol=1e-4)
    np.testing.assert_allclose(profile.gradient_rms, mean_rms(gradients), rtol=1e-4)


def test_gradients_leave_the_parameters_alone_and_need_none_trainable(tokens):
    model = tiny("full").requires_grad_(False)
    with torch.no_grad():
        frozen = depth_profile(model, tokens)
    model.requires_grad_(True)
    np.testing.assert_allclose(frozen.gradient_rms, depth_profile(model, tokens).gradient_rms)
    assert frozen.gradient_rms.min() > 0
    assert all(parameter.grad is None for parameter in model.parameters())


def test_entropy_and_shares_by_hand(tokens):
    """A free vector in place of keys: site 1 gives the embedding 3/4, sigmoid weights are no distribution."""
    model = tiny("full", randomised=False, mixing="static")
    with torch.no_grad():
        model.connection.logits[1].copy_(torch.tensor([[math.log(3.0)], [0.0]]))
    profile = depth_profile(model, tokens)
    np.testing.assert_allclose(profile.mean_matrix[1, :2], [0.75, 0.25], rtol=1e-6)
    assert profile.entropy[1] == pytest.approx(-0.75 * math.log(0.75) - 0.25 * math.log(0.25))
    assert profile.entropy[2] == pytest.approx(math.log(3))
    expected = (1 + 0.75 + sum(1 / n for n in range(3, SITES + 2))) / (SITES + 1)
    assert profile.source_share[0] == pytest.approx(expected)
    # Source 6 is seen by the readout alone, source 5 by the readout and the site before it.
    assert profile.source_share[SITES] == pytest.approx(1 / (SITES + 1))
    assert profile.source_share[SITES - 1] == pytest.approx((1 / SITES + 1 / (SITES + 1)) / 2)


@pytest.mark.parametrize("connection", ["full", "block", "denseformer", "delta:reads=qkv"])
def test_the_profile_is_of_the_mixing_matrix(connection, tokens):
    """The mean, and the chosen tokens' matrices, are those of `mixing_matrix` on the whole batch at once."""
    model = tiny(connection)
    profile = depth_profile(model, tokens, positions=[4, 1])
    with torch.no_grad():
        matrices = mixing_matrix(model.connection, model.embedding(tokens[:, :-1]), model.bound_sublayers(6))
    np.testing.assert_allclose(profile.mean_matrix, matrices.mean((0, 1)), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(profile.token_matrices, matrices[0, [4, 1]], rtol=1e-4, atol=1e-5)
    assert np.isfinite(profile.gradient_rms).all()
    assert (profile.entropy <= profile.entropy_limit + 1e-6).all()
    if connection in ("full", "block"):
        np.testing.assert_allclose(profile.mean_share.sum(-1), 1, rtol=1e-6)
        assert connection == "block" or np.allclose(profile.mean_matrix.sum(-1), 1)


class Silent(torch.nn.Module):
    def forward(self, h, context):
        return torch.zeros_like(h)


def test_a_sublayer_that_returns_a_constant_has_the_gradient_of_any_other(tokens):
    """Its source is read, whether or not it follows from the input: as that of a sublayer whose output is zero."""
    model, silent = tiny("full"), tiny("full")
    torch.nn.init.zeros_(model.sublayers[1].out.weight)
    silent.sublayers[1] = Silent()
    expected, profile = depth_profile(model, tokens), depth_profile(silent, tokens)
    np.testing.assert_allclose(profile.gradient_rms, expected.gradient_rms, rtol=1e-5)
    assert profile.output_rms[2] == 0 < profile.gradient_rms[2]


def test_chunks_do_not_change_the_result(tokens, monkeypatch):
    model = tiny("hc")
    whole = depth_profile(model, tokens, positions=[0, 3, 5])
    monkeypatch.setattr("attnres.analysis.dynamics.TAG_BYTES", 7 * 7 * 8 * 4 * 2)  # two tokens at a time
    chunked = depth_profile(model, tokens, positions=[0, 3, 5])
    np.testing.assert_allclose(chunked.mean_matrix, whole.mean_matrix, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(chunked.token_matrices, whole.token_matrices, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(chunked.entropy, whole.entropy, rtol=1e-4)
