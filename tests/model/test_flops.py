"""Operation counts: against torch's own counter for the matrix products, by hand for the connections."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from attnres import Transformer, TransformerConfig, make_connection
from attnres.model.flops import connection_flops, training_flops
from tests.model.test_backbones import config_of


@pytest.mark.parametrize("backbone", ["lab", "llama"])
def test_matrix_products_are_torchs_count(backbone):
    if backbone == "llama":
        pytest.importorskip("transformers")
    sizes = {"dim": 48, "layers": 3, "heads": 4, "kv_heads": 2, "context": 64, "vocab_size": 100, "tied": True}
    config = TransformerConfig(connection="residual", backbone=backbone, **sizes)
    model = Transformer(config)
    with (
        sdpa_kernel(SDPBackend.MATH),
        FlopCounterMode(display=False) as counter,
    ):  # the fused kernel is not counted on CPU
        model(torch.zeros(1, 64, dtype=torch.long))
    forward = counter.get_total_flops() / 64
    # torch counts the whole square of attention, of which a causal model uses (T + 1) / 2T
    forward -= config.layers * 4 * config.dim * (64 - 65 / 2)
    own = connection_flops(make_connection("residual", 48, 6))
    assert training_flops(config) == pytest.approx(3 * (forward + own), rel=1e-12)


def mixture_by_hand(dim, expert, experts, chosen):
    """Weights that a token meets: router, chosen experts and one shared expert of three matrices each."""
    return dim * experts + (chosen + 1) * 3 * dim * expert


def test_kimi_linear_by_hand():
    pytest.importorskip("transformers")
    config = config_of("kimi_linear", context=40)  # KDA with 2 heads of 8, then MLA with 4 heads
    kda = 4 * 32 * 16 + 3 * 16 * 4 + 32 * 2 + 2 * (32 * 8 + 8 * 16)  # q k v o, convolutions, beta, two gates
    mla = 32 * 4 * (8 + 4) + 32 * (8 + 4) + 8 * 4 * (8 + 12) + 4 * 12 * 32
    weights = kda + mla + 3 * 32 * 48 + mixture_by_hand(32, expert=16, experts=4, chosen=2) + 32 * 50
    state = 2 * 8 * 8 * (1 + 2 + 2 + 2)  # decay, read by the key, update, read by the query
    own = connection_flops(make_connection("residual", 32, 4))
    expected = 3 * (2 * weights + state + 2 * 4 * (8 + 4 + 12) * 41 / 2 + own)
    assert training_flops(config) == pytest.approx(expected, rel=1e-12)


def test_connections_by_hand():
    d, sites = 16, 6
    assert connection_flops(make_connection("residual", d, sites)) == sites * d
    sources = sum(range(1, sites + 2))
    # each source: scale, square, mean, dot product (2), weight and add (2); small change per source and site aside
    full = connection_flops(make_connection("full", d, sites))
    assert 6 * sources * d <= full <= 6 * sources * d + (sites + 1) * d + 12 * sources
    assert connection_flops(make_connection("block", d, sites, block_size=3)) < full
