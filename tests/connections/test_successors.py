"""The successors of Block against their formulas, written out in float64 from the raw sources."""

from __future__ import annotations

import pytest
import torch

from attnres import make_connection, mixing_matrix
from tests.connections.test_oracles import rms_norm
from tests.depth import DIM, SITES, make_sublayers, randomised, trace

pytestmark = pytest.mark.usefixtures("float64")

EPS = 1e-6


def traced(name: str, **options):
    """The connection on a stream of magnitude 3, so that normalising shows, with its sources and inputs."""
    connection, sublayers = randomised(name, **options), make_sublayers()
    return connection, *trace(connection, 3 * torch.randn(2, 3, DIM), sublayers)


def blocks_of(outputs, size):
    return [outputs[first : first + size] for first in range(0, len(outputs), size)]


def attention(connection, site, sources, read=None):
    stacked = torch.stack(sources)
    query, gain = connection.query[site], connection.gain[site]
    scores = rms_norm(stacked, gain if read is None else gain[read], EPS) @ (query if read is None else query[read])
    return torch.einsum("nbt,nbtd->btd", scores.softmax(0), stacked)


def test_rms_residual_adds_normalised_outputs():
    _, (x, *outputs), inputs = traced("rms-residual")
    for site, h in enumerate(inputs):
        torch.testing.assert_close(h, x + sum(rms_norm(y, eps=EPS) for y in outputs[:site]))


@pytest.mark.parametrize(("size", "pending"), [(1, "raw"), (3, "raw"), (3, "normalised")])
def test_rms_block_attends_to_sums_of_normalised_outputs(size, pending):
    options = {"block_size": size, "pending": pending} if size > 1 else {}
    connection, (x, *outputs), inputs = traced("rms-block" if options else "rms-full", **options)
    for site, h in enumerate(inputs):
        sources = [x]
        for block in blocks_of(outputs[:site], size):
            read_raw = pending == "raw" and len(block) < size
            sources.append(sum(y if read_raw else rms_norm(y, eps=EPS) for y in block))
        torch.testing.assert_close(h, attention(connection, site, sources))


@pytest.mark.parametrize(("size", "of_plain_weights"), [(1, {}), (3, {"gate": True, "total": True})])
def test_interlayer_attends_once_per_transformer_layer(size, of_plain_weights):
    connection, (x, *outputs), inputs = traced("interlayer", block_size=size, **of_plain_weights)
    gates = connection.gate if of_plain_weights else [1.0] * SITES
    normed = [y + gate * (rms_norm(y, eps=EPS) - y) for y, gate in zip(outputs, gates, strict=True)]
    for site, h in enumerate(inputs):
        mixing = site if site == SITES else site - site % 2
        sources = [x, *map(sum, blocks_of(normed[:mixing], size))]
        mixed = (len(sources) if of_plain_weights else 1) * attention(connection, mixing, sources)
        expected = mixed + 4 * connection.feed[mixing] * x
        if site > mixing:
            expected = expected + (1 + 4 * connection.inner[mixing]) * outputs[mixing]
        torch.testing.assert_close(h, expected)


@pytest.mark.parametrize("size", [1, 3])
def test_delta_adds_attention_over_block_sums_to_the_stream(size):
    connection, (x, *outputs), inputs = traced("delta", block_size=size)
    for site, h in enumerate(inputs):
        expected = x + sum(outputs[:site])
        if 0 < site < SITES:
            expected = expected + attention(connection, site, [sum(b) for b in blocks_of(outputs[:site], size)])
        torch.testing.assert_close(h, expected)


@pytest.mark.parametrize(("name", "heads"), [("delta", 4), ("block", 3), ("rms-block", 2)])
def test_each_head_weighs_its_own_channels_by_keys_that_are_normalised_over_all(name, heads):
    gated = {"gate": True} if name == "delta" else {}
    connection, (x, *outputs), inputs = traced(name, block_size=1, heads=heads, **gated)
    outputs = [rms_norm(y, eps=EPS) for y in outputs] if name == "rms-block" else outputs
    for site in range(1, SITES):
        sources = torch.stack(outputs[:site] if name == "delta" else [x, *outputs[:site]])
        expected = x + sum(outputs[:site]) if name == "delta" else torch.zeros_like(x)
        keys = rms_norm(sources, connection.gain[site], EPS) * connection.query[site]
        for head in torch.arange(DIM).chunk(heads):
            p = keys[..., head].sum(-1, keepdim=True).softmax(0)
            expected[..., head] += (connection.gate[site] if gated else 1) * (p * sources[..., head]).sum(0)
        torch.testing.assert_close(inputs[site], expected)


@pytest.mark.parametrize("name", ["delta", "block", "full"])
def test_each_read_has_its_own_query(name):
    options = {"block_size": 3} if name == "block" else {}
    connection, (x, *outputs), inputs = traced(name, **options, reads="qkv-gate-up")
    first = 1 if name == "delta" else 3  # with nothing to attend to, delta's first site reads the stream once
    assert [connection.reads(site) for site in range(SITES + 1)] == [first, 2, 3, 2, 3, 2, 3, 1]
    for site, h in enumerate(inputs):
        sources = [sum(block) for block in blocks_of(outputs[:site], options.get("block_size", 1))]
        for read, mixture in enumerate(h if isinstance(h, tuple) else ()):
            if name == "delta":
                expected = x + sum(outputs[:site]) + attention(connection, site, sources, read)
            else:
                expected = attention(connection, site, [x, *sources], read)
            torch.testing.assert_close(mixture, expected)


def halves(block, size):
    """The sum of a block, or of its beginning, and that of its first half less that of its second."""
    half = -(-size // 2)
    return sum(block), sum(block[:half]) - sum(block[half:], torch.zeros_like(block[0]))


def root_mean_square(x):
    return (x.square().mean(-1, keepdim=True) + EPS).sqrt()


def haares(connection, x, sublayers, size):
    """Every input, by the formula in float64, with the detached factor; each site from the raw outputs."""
    outputs, inputs = [], []
    for site in range(SITES + 1):
        sums, details = [x], []
        for block in blocks_of(outputs, size):
            total, difference = halves(block, size)
            sums.append(total)
            if len(block) > -(-size // 2):
                factor = root_mean_square(total) / root_mean_square(difference)
                details.append(factor.detach() * difference if connection.detach else factor * difference)
        stacked = torch.stack(sums + details)
        scores = rms_norm(stacked, connection.gain[site], EPS) @ connection.query[site]
        bias = torch.zeros(len(sums) + len(details))
        if details:
            bias[len(sums) :] = connection.bias[site]
        inputs.append(torch.einsum("nbt,nbtd->btd", (scores + bias[:, None, None]).softmax(0), stacked))
        if site < SITES:
            outputs.append(sublayers[site](inputs[-1]))
    return inputs


@pytest.mark.parametrize(("size", "detach"), [(2, True), (5, False)])
def test_haares_reads_sums_and_details_of_blocks(size, detach):
    connection, sublayers = randomised("haares", block_size=size, detach=detach), make_sublayers()
    x = torch.randn(2, 3, DIM, requires_grad=True)
    expected = haares(connection, x, sublayers, size)
    for h, other in zip(trace(connection, x, sublayers)[1], expected, strict=True):
        torch.testing.assert_close(h, other)
    leaves = [x, *connection.parameters()]
    weights = torch.randn(2, 3, DIM)

    def gradients(h):
        found = torch.autograd.grad((weights * h).sum(), leaves, allow_unused=True)
        return [torch.zeros_like(leaf) if g is None else g for g, leaf in zip(found, leaves, strict=True)]

    ours = gradients(connection.readout(connection.run(connection.start(x), sublayers)))
    for gradient, other in zip(ours, gradients(expected[-1]), strict=True):
        torch.testing.assert_close(gradient, other)


@pytest.mark.parametrize("streams", [2, 8])
def test_kromhc_is_the_kronecker_product_of_pairs(streams):
    connection = randomised("kromhc", streams=streams)
    values = (torch.randn(2, 3, streams, DIM),)
    _, res, _ = connection.weigh(values, 1)
    u = rms_norm(values[0].flatten(-2), eps=EPS)
    logits = connection.res.scale[1] * (u @ connection.res.fn[1].T) + connection.bias_res[1]
    for token in range(3):
        expected = torch.ones(1, 1)
        for stay, swap in logits[1, token].view(-1, 2):
            a = torch.sigmoid(stay - swap)
            expected = torch.kron(expected, torch.stack([torch.stack([a, 1 - a]), torch.stack([1 - a, a])]))
        torch.testing.assert_close(res[1, token], expected)
    start = make_connection("kromhc", DIM, SITES, streams=streams).weigh(values, 1)[1]
    torch.testing.assert_close(start, torch.eye(streams).expand_as(start), rtol=0, atol=2e-3)


@pytest.mark.parametrize("name", ["rms-residual", "rms-block", "rms-full", "delta"])
def test_a_gate_goes_from_the_plain_residual_to_the_rule(name):
    options = {"total": True} if name in ("rms-block", "rms-full") else {}
    connection, sublayers = make_connection(name, DIM, SITES, gate=True, **options), make_sublayers()
    x = 3 * torch.randn(2, 3, DIM)
    matrix = mixing_matrix(connection, x, sublayers)
    torch.testing.assert_close(matrix, torch.ones_like(matrix).tril())
    rule = make_connection(name, DIM, SITES, **options)
    with torch.no_grad():
        for gate in connection.gate:
            if gate is not None:
                gate.fill_(1.0)
    expected = trace(rule, x, sublayers)[1]
    for h, other in zip(trace(connection, x, sublayers)[1], expected, strict=True):
        torch.testing.assert_close(h, other)
