"""Each rule against something that is not our code: an independent package, or its plain definition written out."""

from __future__ import annotations

import importlib.util
from itertools import permutations
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hyper_connections import HyperConnections

from attnres import make_connection, mixing_matrix
from attnres.connections.rules.mhc import sinkhorn
from tests.depth import DIM, SITES, make_sublayers, randomised, trace

pytestmark = pytest.mark.usefixtures("float64")

IN_FLOAT32 = {"rtol": 1e-4, "atol": 1e-5}
"""How close a package that computes in float32 whatever it is given comes to float64."""


def naive_attnres():
    """fla's reference. Its file is loaded by itself, because importing the package needs Triton."""
    package = importlib.util.find_spec("fla")
    path = Path(package.submodule_search_locations[0]) / "ops" / "attnres" / "naive.py"
    spec = importlib.util.spec_from_file_location("fla_naive_attnres", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.naive_attnres


def rms_norm(x, gain=None, eps=1e-6):
    return F.rms_norm(x, x.shape[-1:], gain, eps)


def test_full_equals_fla_at_every_site():
    connection, sublayers = randomised("full"), make_sublayers()
    sources, inputs = trace(connection, torch.randn(2, 3, DIM), sublayers)
    for site, h in enumerate(inputs):
        expected = naive_attnres()(connection.query[site], sources[: site + 1], connection.gain[site])
        torch.testing.assert_close(h, expected, **IN_FLOAT32)


def test_q_and_k_share_what_they_read_and_v_has_its_own():
    connection, sublayers = randomised("full", reads="qk-v"), make_sublayers()
    sources, inputs = trace(connection, torch.randn(2, 3, DIM), sublayers)
    for site, h in enumerate(inputs):
        if site % 2 or site == SITES:
            assert isinstance(h, torch.Tensor)
            continue
        q, k, v = h
        assert q is k and connection.reads(site) == 3
        for read, other in enumerate((q, v)):
            query, gain = connection.query[site][read], connection.gain[site][read]
            torch.testing.assert_close(other, naive_attnres()(query, sources[: site + 1], gain), **IN_FLOAT32)


@pytest.mark.parametrize("block_size", [2, 3])
def test_block_equals_fla_over_the_sums_of_blocks(block_size):
    connection, sublayers = randomised("block", block_size=block_size), make_sublayers()
    sources, inputs = trace(connection, torch.randn(2, 3, DIM), sublayers)
    for site, h in enumerate(inputs):
        outputs = sources[1 : site + 1]
        blocks = [sum(outputs[first : first + block_size]) for first in range(0, site, block_size)]
        expected = naive_attnres()(connection.query[site], [sources[0], *blocks], connection.gain[site])
        torch.testing.assert_close(h, expected, **IN_FLOAT32)


def test_window_drops_the_middle():
    matrix = mixing_matrix(randomised("window", window=2), torch.randn(5, DIM), make_sublayers())
    last = matrix[:, SITES]
    assert (last[:, [0, SITES - 1, SITES]] > 0).all() and (last[:, 1 : SITES - 1] == 0).all()


def scores(connection, sources, query=None, first=0):
    """Of keys that are the channels of the sources from `first` on, normalised."""
    query = connection.query[SITES] if query is None else query
    return torch.stack([(rms_norm(v[:, first:], connection.gain[SITES]) * query).sum(-1) for v in sources])


def of_the_input(connection, sources):
    query = connection.query[SITES] + rms_norm(sources[-1]) @ connection.query_map[SITES].T
    return scores(connection, sources, query).softmax(0)


def with_a_null(connection, sources):
    odds = scores(connection, sources).exp()
    return odds / (1 + odds.sum(0))


OPTIONS = {
    "query=input": of_the_input,
    "mixing=static": lambda connection, sources: connection.logits[SITES].softmax(0).expand(-1, 4),
    "weighting=sigmoid": lambda connection, sources: scores(connection, sources).sigmoid(),
    "key_norm=false": lambda connection, sources: (torch.stack(sources) @ connection.query[SITES]).softmax(0),
    "key_slice=5,scaled_scores=true": lambda connection, sources: (
        scores(connection, sources, first=7) / 5**0.5
    ).softmax(0),
    "null=true": with_a_null,
    "null=true,total=true": lambda connection, sources: (SITES + 2) * with_a_null(connection, sources),
    "weighting=sigmoid,total=true": lambda connection, sources: 2 * scores(connection, sources).sigmoid(),
}


@pytest.mark.parametrize("options", OPTIONS)
def test_options_of_attnres_against_plain_definitions(options):
    """The weights of the readout, [source, token]."""
    connection = randomised(f"full:{options}")
    sources, inputs = trace(connection, torch.randn(4, DIM), make_sublayers())
    expected = (OPTIONS[options](connection, sources).unsqueeze(-1) * torch.stack(sources)).sum(0)
    torch.testing.assert_close(inputs[-1], expected)


def test_postnorm_is_the_norm_of_the_sum():
    connection, sublayers = randomised("postnorm"), make_sublayers()
    x = torch.randn(4, DIM)
    _, inputs = trace(connection, x, sublayers)
    h = rms_norm(x, connection.gain[0])
    for site, sublayer in enumerate(sublayers):
        torch.testing.assert_close(inputs[site], h)
        h = rms_norm(h + sublayer(h), connection.gain[site + 1])
    torch.testing.assert_close(inputs[-1], h)


def test_rezero_and_highway_and_x0_by_recurrence():
    x, sublayers = torch.randn(4, DIM), make_sublayers()

    connection, stream = randomised("rezero"), x
    for site, sublayer in enumerate(sublayers):
        stream = stream + connection.alpha[site] * sublayer(stream)
    torch.testing.assert_close(trace(connection, x, sublayers)[1][-1], stream)

    connection, stream = randomised("highway"), x
    for site, sublayer in enumerate(sublayers):
        gate = torch.sigmoid(stream @ connection.gate[site].T + connection.gate_bias[site])
        stream = gate * sublayer(stream) + (1 - gate) * stream
    torch.testing.assert_close(trace(connection, x, sublayers)[1][-1], stream)

    connection, stream = randomised("x0"), x
    for site, sublayer in enumerate(sublayers):
        if site % 2 == 0:
            stream = connection.lam[site // 2][0] * stream + connection.lam[site // 2][1] * x
        stream = stream + sublayer(stream)
    torch.testing.assert_close(trace(connection, x, sublayers)[1][-1], stream)


def test_denseformer_averages_the_outputs_of_layers():
    connection, sublayers = randomised("denseformer", sublayers=6), make_sublayers(sublayers=6)
    x = torch.randn(4, DIM)
    history, stream = [x], x
    for layer in range(3):
        stream = stream + sublayers[2 * layer](stream)
        history.append(stream + sublayers[2 * layer + 1](stream))
        stream = sum(a * value for a, value in zip(connection.average[layer], history, strict=True))
    torch.testing.assert_close(trace(connection, x, sublayers)[1][-1], stream)


@pytest.mark.parametrize("streams", [1, 4])
def test_hc_equals_the_hyper_connections_package(streams):
    connection, sublayers = randomised("hc", streams=streams, eps=1e-12), make_sublayers()  # theirs has none
    x = torch.randn(2, 3, DIM)
    expand, reduce = HyperConnections.get_expand_reduce_stream_functions(streams, disable=False)
    state = expand(x)
    for site, sublayer in enumerate(sublayers):
        theirs = HyperConnections(streams, dim=DIM, layer_index=site)
        with torch.no_grad():
            theirs.norm.gamma.copy_(connection.gain[site] - 1)
            theirs.static_alpha.copy_(torch.cat([connection.read[site][:, None], connection.carry[site]], 1))
            theirs.static_beta.copy_(connection.write[site])
            theirs.dynamic_alpha_fn.copy_(connection.read_carry_fn[site].T)
            theirs.dynamic_alpha_scale.copy_(connection.read_carry_scale[site][0])
            theirs.dynamic_beta_fn.copy_(connection.write_fn[site])
            theirs.dynamic_beta_scale.copy_(connection.write_scale[site][0])
        h, add = theirs(state)
        state = add(sublayer(h))
    h = connection.readout(connection.run(connection.start(x), sublayers))
    torch.testing.assert_close(h, reduce(state))


def test_mhc_equals_transformers_deepseek_v4():
    from transformers.models.deepseek_v4.configuration_deepseek_v4 import DeepseekV4Config
    from transformers.models.deepseek_v4.modeling_deepseek_v4 import DeepseekV4HyperConnection

    n = 4
    config = DeepseekV4Config(hidden_size=DIM, hc_mult=n, hc_sinkhorn_iters=20, hc_eps=0.0, rms_norm_eps=1e-6)
    connection = randomised("mhc", sublayers=3, streams=n)
    streams = torch.randn(2, 5, n, DIM)
    for site in range(3):
        theirs = DeepseekV4HyperConnection(config)
        # It multiplies by the transposed matrix: rows and columns of the residual projection change places.
        res_fn = connection.res.fn[site].unflatten(0, (n, n)).transpose(0, 1).flatten(0, 1)
        with torch.no_grad():
            theirs.fn.copy_(torch.cat([connection.pre.fn[site], connection.post.fn[site], res_fn]))
            biases = (connection.bias_pre[site], connection.bias_post[site], connection.bias_res[site].T.flatten())
            theirs.base.copy_(torch.cat(biases))
            scales = (connection.pre.scale[site], connection.post.scale[site], connection.res.scale[site])
            theirs.scale.copy_(torch.cat(scales))
        post, comb, collapsed = theirs(streams)
        weights = connection.weigh((streams,), site)
        torch.testing.assert_close(connection.gather((streams,), weights, site), collapsed, **IN_FLOAT32)
        torch.testing.assert_close(weights[2], post, **IN_FLOAT32)
        torch.testing.assert_close(weights[1], comb.mT, **IN_FLOAT32)


@pytest.mark.parametrize("logits", [[[0, -120], [0, -120]], [[0, -99], [-200, 0]]])
def test_sinkhorn_of_streams_far_apart_has_a_limit_and_gradients(logits):
    one, other = (torch.tensor(logits, dtype=dtype, requires_grad=True) for dtype in (torch.float32, torch.float64))
    matrix, exact = sinkhorn(one), sinkhorn_by_division(other)
    torch.testing.assert_close(matrix, exact.float())
    weights = torch.tensor([[1, 2], [3, 5]])
    (gradient,) = torch.autograd.grad((matrix * weights).sum(), one)
    (exact,) = torch.autograd.grad((exact * weights).sum(), other)
    torch.testing.assert_close(gradient, exact.float())


def sinkhorn_by_division(logits):
    matrix = logits.exp()
    for _ in range(20):
        matrix = matrix / matrix.sum(-2, keepdim=True)
        matrix = matrix / matrix.sum(-1, keepdim=True)
    return matrix


def test_mhc_lite_is_the_mean_of_permutations():
    connection = randomised("mhc-lite", streams=3)
    values = (torch.randn(2, 3, DIM),)
    _, res, _ = connection.weigh(values, 1)
    u = rms_norm(values[0].flatten(-2))
    share = (connection.res.scale[1] * (u @ connection.res.fn[1].T) + connection.bias_res[1]).softmax(-1)
    expected = torch.zeros(2, 3, 3)
    for k, order in enumerate(permutations(range(3))):
        for row, column in enumerate(order):
            expected[:, row, column] += share[:, k]
    torch.testing.assert_close(res, expected)


@pytest.mark.parametrize("name", ["rezero", "x0", "denseformer"])
def test_starts_as_its_paper_says(name):
    x, sublayers = torch.randn(5, DIM), make_sublayers()
    ones = torch.ones(SITES + 1, SITES + 1).tril()
    expected = torch.eye(SITES + 1)[0].expand(SITES + 1, -1) if name == "rezero" else ones
    matrix = mixing_matrix(make_connection(name, dim=DIM, sublayers=SITES), x, sublayers)
    torch.testing.assert_close(matrix, expected.expand(5, -1, -1))
