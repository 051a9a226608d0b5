"""Operation counts: against torch's own counter for the matrix products, by hand for the connections."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from attnres import Transformer, TransformerConfig, connection_names, make_connection
from attnres.analysis.flops import connection_flops, training_flops


@pytest.mark.parametrize("tied", [False, True])
def test_matrix_products_are_torchs_count(tied):
    config = TransformerConfig(
        dim=48, layers=3, heads=4, kv_heads=2, context=64, connection="residual", vocab_size=100, tied=tied
    )
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


def test_connections_by_hand():
    d, sites = 16, 6
    assert connection_flops(make_connection("residual", d, sites)) == sites * d
    sources = sum(range(1, sites + 2))
    # each source: scale, square, mean, dot product (2), weight and add (2); small change per source and site aside
    full = connection_flops(make_connection("full", d, sites))
    assert 6 * sources * d <= full <= 6 * sources * d + (sites + 1) * d + 12 * sources
    assert connection_flops(make_connection("block", d, sites, block_size=3)) < full


@pytest.mark.parametrize("name", connection_names())
def test_every_connection_has_a_count_that_grows_with_depth(name):
    short, long = (connection_flops(make_connection(name, 8, sites)) for sites in (4, 8))
    assert 0 < short < long


def test_the_count_leaves_the_connection_as_it_was():
    connection = make_connection("full", 8, 4)
    connection_flops(connection)
    assert all(parameter.device.type == "cpu" for parameter in connection.parameters())
