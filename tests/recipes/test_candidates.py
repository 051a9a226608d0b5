"""The candidates of the search, against their formulas and the rules that they start as."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from attnres import make_connection

FILE = Path(__file__).parents[2] / "recipes" / "rules" / "candidates.py"
STREAMS, FED, SIZED, STATIC, SPACED, PLAIN, LAYER, FRESH, NEWEST, INNER, PERIOD = (
    FILE.with_name(f"{name}.py")
    for name in ("streams", "fed", "sized", "static", "spaced", "plain", "layer", "fresh", "newest", "inner", "period")
)
DIM, SITES = 8, 10


def sublayers() -> list[torch.nn.Module]:
    torch.manual_seed(1)
    return [torch.nn.Linear(DIM, DIM, dtype=torch.float64) for _ in range(SITES)]


def read(connection: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    connection = connection.double()
    return connection.readout(connection.run(connection.start(x), sublayers()))


def randomised(connection: torch.nn.Module) -> torch.nn.Module:
    torch.manual_seed(2)
    for parameter in connection.parameters():
        torch.nn.init.normal_(parameter)
    return connection


@pytest.fixture
def x() -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randn(3, 5, DIM, dtype=torch.float64)


@pytest.mark.parametrize(("name", "own"), [("RMSScaled", "size"), ("RMSBias", "bias")])
def test_it_starts_as_rms_block(name, own, x):
    candidate = randomised(make_connection(f"{FILE}:{name}", DIM, SITES))
    for parameter in getattr(candidate, own):
        torch.nn.init.constant_(parameter, {"size": 1.0, "bias": 0.0}[own])
    rms_block = make_connection("rms-block", DIM, SITES)
    rms_block.load_state_dict({k: v for k, v in candidate.state_dict().items() if own not in k}, strict=False)
    torch.testing.assert_close(read(candidate, x), read(rms_block, x), rtol=1e-10, atol=1e-10)
    for parameter in getattr(candidate, own):
        torch.nn.init.normal_(parameter)
    assert (read(candidate, x) - read(rms_block, x)).abs().max() > 0.01


def test_rms_delta_is_its_formula(x):
    candidate = randomised(make_connection(f"{FILE}:RMSDelta", DIM, SITES)).double()
    stream, blocks = x, []
    for site, sublayer in enumerate(sublayers()):
        h = stream
        if blocks:
            key = candidate.query[site] * candidate.gain[site]
            scores = [(b * key).sum(-1) / (b.square().mean(-1) + 1e-6).sqrt() for b in blocks]
            weights = torch.softmax(torch.stack(scores), 0)
            h = stream + sum(p[..., None] * b for p, b in zip(weights, blocks, strict=True))
        y = sublayer(h)
        normed = y / (y.square().mean(-1, keepdim=True) + 1e-6).sqrt()
        stream = stream + normed
        blocks = [*blocks, normed] if site % 4 == 0 else [*blocks[:-1], blocks[-1] + normed]
    torch.testing.assert_close(read(candidate, x), stream, rtol=1e-10, atol=1e-10)


def test_rms_keen_is_rms_block_with_other_gains(x):
    candidate = make_connection(f"{FILE}:RMSKeen:gain=3.0", DIM, SITES)
    assert all((gain == 3.0).all() for gain in candidate.gain)
    rms_block = make_connection("rms-block", DIM, SITES)
    rms_block.load_state_dict({**randomised(candidate).state_dict()})  # a plain dict does not say whose it is
    torch.testing.assert_close(read(candidate, x), read(rms_block, x), rtol=1e-10, atol=1e-10)


def normed(y: torch.Tensor) -> torch.Tensor:
    return y / (y.square().mean(-1, keepdim=True) + 1e-6).sqrt()


def test_rms_layer_is_its_formula(x):
    candidate = randomised(make_connection(f"{FILE}:RMSLayer", DIM, SITES)).double()
    sources, h = [x], x
    for site, sublayer in enumerate([*sublayers(), None]):
        if site % 2 == 0:
            h = attended(candidate, site, sources)
        if sublayer is None:
            break
        y = normed(sublayer(h))
        h = h + y
        sources = [*sources, y] if site % 4 == 0 else [*sources[:-1], sources[-1] + y]
    torch.testing.assert_close(read(candidate, x), h, rtol=1e-10, atol=1e-10)


def test_rms_stream_is_its_formula(x):
    candidate = randomised(make_connection(f"{FILE}:RMSStream", DIM, SITES)).double()
    stream = x
    for site, sublayer in enumerate(sublayers()):
        if site % 2 == 0:
            keep, refresh = candidate.lam[site // 2]
            stream = keep * stream + refresh * x
        stream = stream + candidate.size[site] * normed(sublayer(stream))
    torch.testing.assert_close(read(candidate, x), stream, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("options", ["", "feed=False", "size=channel", "size=none", "feed=False,size=none", "keen=4.0"])
def test_a_stream_is_its_formula(options, x):
    candidate = randomised(make_connection(f"{STREAMS}:Stream:{options}".rstrip(":"), DIM, SITES)).double()
    stream = x
    for site, sublayer in enumerate(sublayers()):
        if site % 2 == 0 and "feed" not in options:
            keep, refresh = candidate.lam[site // 2] * (4 if "keen" in options else 1)
            stream = (1 + keep) * stream + refresh * x
        size = 0 if "none" in options else candidate.size[site] * (4 if "keen" in options else 1)
        stream = stream + (1 + size) * normed(sublayer(stream))
    torch.testing.assert_close(read(candidate, x), stream, rtol=1e-10, atol=1e-10)


def attended(candidate, site: int, sources: list[torch.Tensor]) -> torch.Tensor:
    key = candidate.query[site] * candidate.gain[site]
    scores = torch.stack([(normed(source) * key).sum(-1) for source in sources])
    return sum(p[..., None] * source for p, source in zip(torch.softmax(scores, 0), sources, strict=True))


@pytest.mark.parametrize("keen", [1.0, 4.0])
def test_fed_block_is_its_formula(keen, x):
    candidate = randomised(make_connection(f"{FED}:FedBlock:keen={keen}", DIM, SITES)).double()
    finished, opened, raw = [x], None, None
    for site, sublayer in enumerate([*sublayers(), None]):
        h = attended(candidate, site, finished if raw is None else [*finished, raw]) + keen * candidate.feed[site] * x
        if sublayer is None:
            break
        y = sublayer(h)
        sized = (1 + keen * candidate.size[site]) * normed(y)
        opened, raw = (sized, y) if raw is None else (opened + sized, raw + y)
        if site % 4 == 3:
            finished, opened, raw = [*finished, opened], None, None
    torch.testing.assert_close(read(candidate, x), h, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("keen", [1.0, 4.0])
def test_fed_delta_is_its_formula(keen, x):
    candidate = randomised(make_connection(f"{FED}:FedDelta:keen={keen}", DIM, SITES)).double()
    stream, blocks = x, []
    for site, sublayer in enumerate([*sublayers(), None]):
        if site % 2 == 0 and sublayer is not None:
            keep, refresh = keen * candidate.lam[site // 2]
            stream = (1 + keep) * stream + refresh * x
        h = stream + keen * candidate.gate[site - 1] * attended(candidate, site - 1, blocks) if blocks else stream
        if sublayer is None:
            break
        y = normed(sublayer(h))
        stream = stream + (1 + keen * candidate.size[site]) * y
        blocks = [*blocks, y] if site % 4 == 0 else [*blocks[:-1], blocks[-1] + y]
    torch.testing.assert_close(read(candidate, x), h, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("options", "size"), [("", 1.0), ("feed=False", 1.0), ("size=0.25", 0.25)])
def test_a_sized_stream_is_its_formula(options, size, x):
    candidate = randomised(make_connection(f"{SIZED}:Sized:{options}".rstrip(":"), DIM, SITES)).double()
    stream = x
    for site, sublayer in enumerate(sublayers()):
        if site % 2 == 0 and "feed" not in options:
            keep, refresh = candidate.lam[site // 2]
            stream = keep * stream + refresh * x
        stream = stream + size / SITES**0.5 * normed(sublayer(stream))
    torch.testing.assert_close(read(candidate, x), stream, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("size", [1.0, 0.25])
def test_sized_block_is_its_formula(size, x):
    candidate = make_connection(f"{SIZED}:SizedBlock:block_size=3,size={size},gain=4.0", DIM, SITES).double()
    assert all((gain == 4.0).all() for gain in candidate.gain)
    randomised(candidate)
    sources = [x]
    for site, sublayer in enumerate(sublayers()):
        y = size / SITES**0.5 * normed(sublayer(attended(candidate, site, sources)))
        sources = [*sources, y] if site % 3 == 0 else [*sources[:-1], sources[-1] + y]
    torch.testing.assert_close(read(candidate, x), attended(candidate, SITES, sources), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("options", "keen"), [("block_size=3", 1.0), ("block_size=2,keen=4.0", 4.0), ("layers=True", 1.0)]
)
def test_static_is_its_formula(options, keen, x):
    candidate = randomised(make_connection(f"{STATIC}:Static:{options}", DIM, SITES)).double()
    sources, h = [x], x
    for site, sublayer in enumerate([*sublayers(), None]):
        if "layers" not in options or site % 2 == 0:
            h = sum((1 + keen * a) * b for a, b in zip(candidate.weight[site], sources, strict=True))
        if sublayer is None:
            break
        y = normed(sublayer(h))
        h = h + y
        sources = [*sources, y] if site % candidate.block_size == 0 else [*sources[:-1], sources[-1] + y]
    torch.testing.assert_close(read(candidate, x), h, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("options", ["block_size=3", "block_size=4,size=0.5,gain=2.0", "block_size=1", "normed=False"])
def test_spaced_is_its_formula(options, x):
    candidate = make_connection(f"{SPACED}:Spaced:{options}", DIM, SITES).double()
    assert all((gain == (2.0 if "gain" in options else 1.0)).all() for gain in candidate.gain)
    randomised(candidate)
    size, k = (0.5 if "size=0.5" in options else 1.0) / SITES**0.5, candidate.block_size
    sources, h, mixed = [x], x, 0
    for site, sublayer in enumerate([*sublayers(), None]):
        if site > 0 and (site % k == 0 or site == SITES):
            key = candidate.query[mixed] * candidate.gain[mixed]
            scores = torch.stack([(normed(source) * key).sum(-1) for source in sources])
            shares = len(sources) * torch.softmax(scores, 0)
            h = sum(p[..., None] * source for p, source in zip(shares, sources, strict=True))
            mixed += 1
        if sublayer is None:
            break
        y = sublayer(h)
        y = size * (y if "normed" in options else normed(y))
        h = h + y
        sources = [*sources, y] if site % k == 0 else [*sources[:-1], sources[-1] + y]
    assert mixed == len(candidate.query)
    torch.testing.assert_close(read(candidate, x), h, rtol=1e-10, atol=1e-10)


def test_the_controls_are_their_formulas(x):
    stream, sources = x, [x]
    block = randomised(make_connection(f"{PLAIN}:PlainBlock:size=0.5,block_size=3", DIM, SITES)).double()
    for site, sublayer in enumerate(sublayers()):
        stream = stream + 0.5 / SITES**0.5 * sublayer(stream)
        y = 0.5 / SITES**0.5 * sublayer(attended(block, site, sources))
        sources = [*sources, y] if site % 3 == 0 else [*sources[:-1], sources[-1] + y]
    plain = make_connection(f"{PLAIN}:Plain:size=0.5", DIM, SITES)
    torch.testing.assert_close(read(plain, x), stream, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(read(block, x), attended(block, SITES, sources), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("options", ["block_size=4", "block_size=3,start=0.5", "block_size=2,keen=1.0"])
def test_fed_layer_is_its_formula(options, x):
    candidate = randomised(make_connection(f"{LAYER}:FedLayer:{options}", DIM, SITES)).double()
    first, keen = (0.5 if "start" in options else 0.0), (1.0 if "keen" in options else 4.0)
    sources, h = [x], x
    for site, sublayer in enumerate([*sublayers(), None]):
        if site % 2 == 0:
            h = attended(candidate, site // 2, sources) + (first + keen * candidate.feed[site // 2]) * x
        if sublayer is None:
            break
        y = normed(sublayer(h))
        h = h + y
        sources = [*sources, y] if site % candidate.block_size == 0 else [*sources[:-1], sources[-1] + y]
    torch.testing.assert_close(read(candidate, x), h, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    "options", ["block_size=4", "fresh=0.25,keen=1.0", "raw=True,block_size=2", "same=True,block_size=3"]
)
def test_fresh_is_its_formula(options, x):
    candidate = randomised(make_connection(f"{FRESH}:Fresh:{options}", DIM, SITES)).double()
    first, keen = (0.25 if "fresh" in options else 1.0), (1.0 if "keen" in options else 4.0)
    sources, h = [x], x
    for site, sublayer in enumerate([*sublayers(), None]):
        opens = site % candidate.block_size == 0
        if site % 2 == 0:
            seen = [*sources, torch.zeros_like(x)] if "same" in options and opens and sublayer else sources
            key = candidate.query[site // 2] * candidate.gain[site // 2]
            shares = torch.softmax(torch.stack([(normed(source) * key).sum(-1, keepdim=True) for source in seen]), 0)
            h = sum(p * source for p, source in zip(shares, seen, strict=True)) + keen * candidate.feed[site // 2] * x
        if sublayer is None:
            break
        y = sublayer(h)
        sources = [*sources, normed(y)] if opens else [*sources[:-1], sources[-1] + normed(y)]
        if site % 2 == 0:
            scale = shares[-1] if "same" in options else first + keen * candidate.scale[site // 2]
            h = h + scale * (y if "raw" in options else normed(y))
    torch.testing.assert_close(read(candidate, x), h, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("options", ["block_size=4", "block_size=3,after=0.5"])
def test_newest_is_its_formula(options, x):
    candidate = randomised(make_connection(f"{NEWEST}:Newest:{options}", DIM, SITES)).double()
    after = 0.5 if "after" in options else 1.0
    sources, h, y = [x], x, None
    for site, sublayer in enumerate([*sublayers(), None]):
        if site % 2 == 0:
            h = attended(candidate, site // 2, sources) + 4 * candidate.feed[site // 2] * x
            h = h if y is None else h + (after + 4 * candidate.scale[site // 2 - 1]) * y
        if sublayer is None:
            break
        y = normed(sublayer(h))
        h = h + y
        sources = [*sources, y] if site % candidate.block_size == 0 else [*sources[:-1], sources[-1] + y]
    torch.testing.assert_close(read(candidate, x), h, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("options", ["block_size=3", "block_size=2,keen=1.0", "block_size=4,whole=True"])
def test_inner_is_its_formula(options, x):
    candidate = randomised(make_connection(f"{INNER}:Inner:{options}", DIM, SITES)).double()
    keen, size = (1.0 if "keen" in options else 4.0), candidate.block_size
    outputs, taken_up, layers = [], [], sublayers()
    for layer in range(SITES // 2 + 1):
        sources = [x, *(sum(taken_up[first : first + size]) for first in range(0, len(taken_up), size))]
        h = attended(candidate, layer, sources) + keen * candidate.feed[layer] * x
        if 2 * layer == SITES:
            break
        y = layers[2 * layer](h)
        outputs = [y, layers[2 * layer + 1](h + y)]
        taken_up += [0, normed(sum(outputs))] if "whole" in options else map(normed, outputs)
    torch.testing.assert_close(read(candidate, x), h, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("options", ["period=4", "period=3,block_size=2", "period=2,scaled=False"])
def test_period_is_its_formula(options, x):
    candidate = randomised(make_connection(f"{PERIOD}:Period:{options}", DIM, SITES)).double()
    sources, h = [x], x
    for site, sublayer in enumerate([*sublayers(), None]):
        if site % candidate.period == 0 or site == SITES:
            h = attended(candidate, site, sources) + 4 * candidate.feed[site] * x
        if sublayer is None:
            break
        y = sublayer(h)
        scale = candidate.scale[site]
        h = h + (1 if scale is None else 1 + 4 * scale) * y
        opens = site % candidate.block_size == 0
        sources = [*sources, normed(y)] if opens else [*sources[:-1], sources[-1] + normed(y)]
    torch.testing.assert_close(read(candidate, x), h, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("size", [2, 3, 8])
def test_interlayer_is_the_candidate_that_the_search_found(size, x):
    ours = randomised(make_connection(f"interlayer:block_size={size}", DIM, SITES))
    found = make_connection(f"{FRESH}:Fresh:raw=True,block_size={size}", DIM, SITES)
    parts = {"query": "query", "gain": "gain", "feed": "feed", "scale": "inner"}
    state = {
        f"{name}.{number}": parameter
        for name, of_ours in parts.items()
        for number, parameter in enumerate(filter(lambda p: p is not None, getattr(ours, of_ours)))
    }
    found.load_state_dict(state)
    torch.testing.assert_close(read(ours, x), read(found, x), rtol=1e-10, atol=1e-10)
