"""The residuals of released models against transformers' own modules, or the formula of their source written out."""

from __future__ import annotations

import math
from importlib import import_module

import pytest
import torch

from attnres import make_connection
from tests.connections.test_oracles import IN_FLOAT32, rms_norm
from tests.depth import DIM, SITES, make_sublayers, randomise, randomised, trace

pytestmark = pytest.mark.usefixtures("float64")

EPS = 1e-6


def theirs(model: str):
    """transformers' module of a model, which an older one lacks."""
    name = f"transformers.models.{model}.modeling_{model}"
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not name.startswith(error.name):
            raise
        pytest.skip(f"this transformers has no {model}")


def config_of(model: str, name: str, **options):
    return getattr(import_module(f"transformers.models.{model}.configuration_{model}"), name)(**options)


@torch.no_grad()
def test_gated_residual_equals_transformers_qwen4():
    module, n, rank = theirs("qwen4_exp"), 4, 5
    config = config_of("qwen4_exp", "Qwen4ExpTextConfig", hidden_size=DIM, hc_count=n, hc_lowrank=rank)
    connection, sublayers = randomised("gated-residual", streams=n, rank=rank), make_sublayers()
    x = 3 * torch.randn(2, 3, DIM)
    _, inputs = trace(connection, x, sublayers)
    streams = x.repeat(1, 1, n)
    for site in range(SITES + 1):
        gate = module.Qwen4ExpTextGatedResidual(config, use_combine=site < SITES)
        gate.hc_norm.weight.copy_(connection.gain[site].flatten() - 1)  # theirs is 1 + weight
        gate.input_mix_weight_down.weight.copy_(connection.down[site])
        gate.input_mix_weight_up.weight.copy_(connection.up[site])
        if site == SITES:
            torch.testing.assert_close(inputs[site], gate(streams), **IN_FLOAT32)
            return
        gate.block_inject_weight.weight.copy_(connection.write[site])
        h, streams, injected = gate(streams)
        torch.testing.assert_close(inputs[site], h, **IN_FLOAT32)
        y = sublayers[site](h)
        streams = streams + (y.unsqueeze(-2) * injected.unsqueeze(-1)).flatten(-2)


@torch.no_grad()
@pytest.mark.parametrize("norm", [True, False])
def test_muse_gate_equals_transformers_muse_spark(norm):
    module = theirs("muse_spark")
    config = config_of("muse_spark", "MuseSparkTextConfig", hidden_size=DIM, num_attention_heads=4)
    connection, sublayers = randomised("muse-gate", norm=norm), make_sublayers()
    connection.gate[2][0] = 5.0  # whose carry is held up
    stream = 3 * torch.randn(2, 3, DIM)
    _, inputs = trace(connection, stream, sublayers)
    assert config.residual_gate_temperature == connection.temperature
    for site, sublayer in enumerate(sublayers):
        torch.testing.assert_close(inputs[site], stream, **IN_FLOAT32)
        gate, y = module.MuseSparkResidualGate(config), sublayer(stream)
        gate.gate.copy_(connection.gate[site])
        stream = gate(stream, module.MuseSparkRMSNorm(eps=EPS, with_scale=False)(y) if norm else y)
    torch.testing.assert_close(inputs[-1], stream, **IN_FLOAT32)


@pytest.mark.parametrize("norm", [True, False])
def test_depth_scaled_equals_transformers_beam(norm):
    module = theirs("beam")
    config = config_of("beam", "BeamConfig", num_hidden_layers=4)
    connection, sublayers = make_connection("depth-scaled", DIM, SITES, norm=norm), make_sublayers()
    stream = 3 * torch.randn(2, 3, DIM)
    _, inputs = trace(connection, stream, sublayers)
    for site, sublayer in enumerate(sublayers):
        with torch.device("meta"):
            layer = module.BeamDecoderLayer(config, site // 2)
        term = layer.mlp_residual_add_idx if site % 2 else layer.attn_residual_add_idx
        y = sublayer(stream)
        stream = module.depth_scaled_residual_add(rms_norm(y) if norm else y, stream, term)
        torch.testing.assert_close(inputs[site + 1], stream)


@pytest.mark.parametrize("options", [{}, {"streams": 3, "retention": True}])
def test_wide_is_megatrons_formula(options):
    """Stream by stream, as the description of pull request 6716 has it: 3 is the number that it names."""
    connection, sublayers = randomised("wide", **options), make_sublayers()
    x = torch.randn(2, 3, DIM)
    _, inputs = trace(connection, x, sublayers)
    streams = [x] * connection.streams

    def sigmoid(value):
        return 1 / (1 + math.exp(-value))

    for site, h in enumerate(inputs):
        shares = [sigmoid(a.item()) for a in connection.read[site]]
        torch.testing.assert_close(h, sum(share * of for share, of in zip(shares, streams, strict=True)))
        for i in range(connection.streams if site < SITES else 0):
            kept = 1 - 0.1 * sigmoid(-connection.keep[site][i].item()) if connection.keep else 1.0
            streams[i] = kept * streams[i] + 2 * sigmoid(connection.write[site][i].item()) * sublayers[site](h)


@torch.no_grad()
@pytest.mark.parametrize("laurel", [False, True])
def test_altup_equals_transformers_gemma3n(laurel):
    """With LAuReL its sublayer is attention plus the low-rank map of the normalised input."""
    module, n = theirs("gemma3n"), 4
    config = config_of(
        "gemma3n", "Gemma3nTextConfig", hidden_size=DIM, altup_num_inputs=n, laurel_rank=2, num_attention_heads=4
    )
    connection, sublayers = (
        randomised("altup", sublayers=6, streams=n, active=0, laurel=laurel),
        make_sublayers(sublayers=6),
    )
    streams, lows = 3 * torch.randn(2, 3, n, DIM), []
    for site in range(0, 6, 2):
        low = module.Gemma3nTextLaurelBlock(config).eval()
        randomise(low)
        lows.append(low)
        connection.router[site + 1].copy_(connection.router[site])  # Gemma ties the two
        connection.router_gain[site + 1].copy_(connection.router_gain[site])

    def attention(h, site):
        if not laurel:
            return sublayers[site](h)
        normed = rms_norm(h, connection.laurel_gain[site])
        return sublayers[site](normed) + lows[site // 2](normed) - normed

    values = (streams,)
    theirs_now = streams.movedim(-2, 0)
    for site in range(0, 6, 2):
        altup = module.Gemma3nTextAltUp(config).eval()
        altup.modality_router.weight.copy_(connection.router[site])
        altup.router_norm.weight.copy_(connection.router_gain[site])
        altup.router_input_scale.fill_(1 / DIM)
        altup.prediction_coefs.weight.copy_(connection.predict[site].flatten(0, 1))
        altup.correction_coefs.weight.copy_(connection.correct[site + 1])
        predictions = altup.predict(theirs_now)
        h = predictions[0]
        if laurel:
            normed = rms_norm(h, connection.laurel_gain[site])
            h = (h + sublayers[site](normed) + lows[site // 2](normed)) / 2**0.5
        else:
            h = h + sublayers[site](h)
        theirs_now = altup.correct(predictions, h + sublayers[site + 1](h))
        values = connection.run(values, [lambda h, site=site: attention(h, site), sublayers[site + 1]], site)
        torch.testing.assert_close(values[0].movedim(-2, 0), theirs_now, **IN_FLOAT32)
    torch.testing.assert_close(connection.readout(values), theirs_now.mean(0), **IN_FLOAT32)


def test_altup_goes_round_its_streams():
    """A later layer computes another stream; an MLP that is missing at the end gives nothing."""
    connection, x = randomised("altup", sublayers=3, streams=2), torch.randn(2, DIM)
    sublayers = make_sublayers(sublayers=3)
    values = connection.run(connection.start(x), sublayers[:2])
    (streams,) = values
    mixing, _ = connection.weigh(values, 2)
    predicted = mixing @ streams
    h = connection.mix(values, 2)[1]
    torch.testing.assert_close(h, predicted[..., 1, :])
    read = connection.readout(connection.run(values, sublayers[2:], 2))
    torch.testing.assert_close(read, predicted.mean(-2) + sublayers[2](h))


@pytest.mark.parametrize("name", ["wide", "altup", "altup:active=0,laurel=true", "gated-residual", "muse-gate"])
def test_no_start_is_one_that_training_cannot_leave(name):
    """Two factors that are both zero have no gradient, and equal streams with equal gradients stay equal."""
    connection, sublayers = make_connection(name, DIM, SITES), make_sublayers()
    start = {key: parameter.detach().clone() for key, parameter in connection.named_parameters()}
    x, target = torch.randn(2, 4, DIM)
    for _ in range(3):
        connection.zero_grad()
        values = connection.run(connection.start(x), sublayers)
        (connection.readout(values) - target).square().sum().backward()
        with torch.no_grad():
            for parameter in connection.parameters():
                parameter -= 0.01 * parameter.grad
    assert not [key for key, parameter in connection.named_parameters() if torch.equal(parameter, start[key])]
    if hasattr(connection, "streams"):
        streams = connection.run(connection.start(x), sublayers[: SITES - 1])[0].unbind(-2)
        apart = [(one - other).abs().max() for i, one in enumerate(streams) for other in streams[:i]]
        # With one active stream all others are corrected alike: Gemma starts them apart.
        assert min(apart) > 1e-4 or "active" in name
