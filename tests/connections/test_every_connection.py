"""The protocol: what holds for every connection of the folder and for its options, with all parameters randomised.

Float64 says what is right, to the last digits and on every processor; one test holds float32 to it.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable

import pytest
import torch
from safetensors.torch import load, save
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from attnres import Connection, connection_names, make_connection, mixing_matrix
from attnres.connections import check as checks
from attnres.connections import connection_class, option_defaults
from attnres.connections.rules.block import AttnResOptions
from tests.depth import DIM, SITES, VARIANTS, in_blocks, make_sublayers, randomised, trace, variant_id

every_variant = pytest.mark.parametrize("variant", VARIANTS, ids=variant_id)


def in_float64(variant) -> Connection:
    name, options = variant
    return randomised(name, **options).double()


def embedding(dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(2, 3, DIM, generator=torch.Generator().manual_seed(3)).to(dtype)


def whole(connection: Connection, sublayers=None) -> Callable[[Tensor], Tensor]:
    sublayers = sublayers or make_sublayers()
    return lambda x: connection.readout(connection.run(connection.start(x), sublayers))


def cut(connection: Connection, *sites: int) -> Callable[[Tensor], Tensor]:
    """`run` in several parts, as pipeline stages do."""
    sublayers = make_sublayers()

    def forward(x: Tensor) -> Tensor:
        values = connection.start(x)
        for first, end in zip((0, *sites), (*sites, SITES), strict=True):
            values = connection.run(values, sublayers[first:end], first)
        return connection.readout(values)

    return forward


def recomputed(connection: Connection) -> Callable[[Tensor], Tensor]:
    """Two sublayers at a time, whose activations are made again for the backward pass."""
    sublayers = make_sublayers()

    def forward(x: Tensor) -> Tensor:
        values = connection.start(x)
        for first in range(0, SITES, 2):
            values = checkpoint(connection.run, values, sublayers[first : first + 2], first, use_reentrant=False)
        return connection.readout(values)

    return forward


def by_definition(connection: Connection) -> Connection:
    """The same one by `weigh`, `gather` and `scatter` alone: nothing fused, and no two phases."""
    plain = copy.deepcopy(connection)
    plain.mix = lambda values, site: Connection.mix(plain, values, site)
    plain.absorb = lambda *arguments: Connection.absorb(plain, *arguments)
    plain.run = lambda values, sublayers, first=0: Connection.run(plain, values, sublayers, first)
    return plain


def outputs_and_gradients(connection: Connection, forward, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    x = embedding(dtype).requires_grad_()
    connection.zero_grad(set_to_none=True)
    h = forward(x)
    (h * torch.linspace(-1, 1, h.numel(), dtype=dtype).view_as(h)).sum().backward()
    named = {name: parameter.grad for name, parameter in connection.named_parameters()}
    assert None not in named.values(), "a parameter without a gradient stops DistributedDataParallel"
    return {"h": h.detach(), "x": x.grad, **named}


def assert_equal_to_rounding(found: dict[str, Tensor], expected: dict[str, Tensor], rounding: float) -> None:
    """Each tensor by its norm; a gradient that is zero but for rounding by the largest of all."""
    largest = max(tensor.norm() for tensor in expected.values())
    for name, other in expected.items():
        error = (found[name].double() - other).norm()
        assert error <= rounding * (other.norm() + 0.01 * largest), f"{name} is off by {error / other.norm():.1e}"


@every_variant
def test_the_matrix_rebuilds_what_every_site_reads_and_knows_no_later_source(variant):
    connection, sublayers, x = in_float64(variant), make_sublayers(), embedding()
    matrix = mixing_matrix(connection, x, sublayers, per_channel=True, per_read=True)
    sources, inputs = trace(connection, x, sublayers)
    reads = max(connection.reads(site) for site in range(SITES + 1))
    assert matrix.shape == (2, 3, reads, SITES + 1, SITES + 1, DIM)
    rebuilt = torch.einsum("btrlid,ibtd->lrbtd", matrix, torch.stack(sources))
    mean, plain = mixing_matrix(connection, x, sublayers, per_channel=True), mixing_matrix(connection, x, sublayers)
    for site, read in enumerate(inputs):
        for which, h in enumerate(read if isinstance(read, tuple) else (read,)):
            torch.testing.assert_close(rebuilt[site, which], h, rtol=1e-11, atol=1e-11 * h.abs().max().item())
        own = matrix[:, :, : connection.reads(site), site].mean(2)  # over the reads that the site has
        torch.testing.assert_close(mean[:, :, site], own)
        torch.testing.assert_close(plain[:, :, site], own.mean(-1))
    assert not plain.triu(1).any()
    assert (plain.diagonal(dim1=-2, dim2=-1)[..., 0] != 0).all(), "the first site must see the embedding"


@every_variant
def test_fused_split_and_recomputed_it_is_the_definition_with_its_gradients(variant):
    connection = in_float64(variant)
    plain = by_definition(connection)
    expected = outputs_and_gradients(plain, whole(plain))
    for forward in (whole(connection), cut(connection, 3), cut(connection, 1, 5), recomputed(connection)):
        assert_equal_to_rounding(outputs_and_gradients(connection, forward), expected, 1e-10)
    with torch.no_grad():  # one token at a time, as while decoding, where two phases gain nothing
        tokens = embedding()[:1].split(1, 1)
        alone = torch.cat([whole(connection)(token) for token in tokens], 1)
        torch.testing.assert_close(alone, expected["h"][:1], rtol=1e-9, atol=1e-9)


@every_variant
def test_float32_is_float64_rounded_with_its_gradients(variant):
    """Rounding grows by 10 to 100 over seven sites with random parameters: 1e-7 becomes 1e-5 at the most."""
    name, options = variant
    connection, exact = randomised(name, **options), in_float64(variant)
    found = outputs_and_gradients(connection, whole(connection), torch.float32)
    assert_equal_to_rounding(found, outputs_and_gradients(exact, whole(exact)), 1e-4)
    mixed = whole(connection)(embedding())  # parameters of float32 are as good as the same numbers in float64
    torch.testing.assert_close(mixed, whole(exact)(embedding()), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("name", connection_names())
def test_it_keeps_the_protocol(name):
    """What a rule of one's own is checked for; the rest is held to float64 above."""
    for check in checks.CHECKS:
        if check not in (checks.fused, checks.bfloat16, checks.saved):
            check(lambda sublayers: make_connection(in_blocks(name), checks.DIM, sublayers))


@every_variant
def test_a_stream_of_bfloat16_stays_one_and_the_maths_is_in_float32(variant):
    name, options = variant
    connection, x = randomised(name, **options), embedding().bfloat16()
    with torch.no_grad():
        for parameter in connection.parameters():
            parameter.copy_(parameter.bfloat16())
    rounded, exact = whole(connection)(x), whole(connection)(x.float())
    assert rounded.dtype == torch.bfloat16
    assert (rounded.float() - exact).norm() < 0.1 * exact.norm()
    narrow = copy.deepcopy(connection).bfloat16()  # of the same numbers as parameters the same comes out
    assert torch.equal(whole(narrow)(x), rounded)
    sublayers = [lambda *h, f=f: _without_autocast(f, h).bfloat16() for f in make_sublayers()]
    expected = whole(connection, sublayers)(x.float())
    with torch.autocast("cpu", dtype=torch.bfloat16):  # rounds the sublayers alone
        found = whole(connection, sublayers)(x.float())
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def _without_autocast(f, h):
    with torch.autocast("cpu", enabled=False):
        return f(*h)


@pytest.mark.parametrize("name", connection_names())
def test_what_is_saved_is_loaded_wherever_it_was_made(name):
    """On the meta device, too, where large models are made: no buffer may be left with what the memory held."""
    connection, x = randomised(name), embedding(torch.float32)
    expected, state = whole(connection)(x), load(save(connection.state_dict()))
    with torch.device("meta"):
        moved, assigned = (make_connection(in_blocks(name), DIM, SITES) for _ in range(2))
    assert whole(moved, [lambda h, *_: torch.tanh(h)] * SITES)(x.to("meta")).shape == x.shape
    moved.to_empty(device="cpu").load_state_dict(state)
    assigned.load_state_dict(state, assign=True)
    for loaded in (moved, assigned):
        assert torch.equal(whole(loaded)(x), expected)


ONE_GRAPH = [
    ("haares", "aot_eager"),  # differentiated ahead; tests/gpu/test_right.py compiles the operator to C++
    *((name, "eager") for name in connection_names() if name not in ("block", "haares")),
]


@pytest.mark.parametrize(
    ("name", "backend"), [("block", "aot_eager"), *(pytest.param(*case, marks=pytest.mark.slow) for case in ONE_GRAPH)]
)
def test_every_connection_compiled_as_one_graph_is_the_same(name, backend):
    """Three sublayers: a whole block of two and an open one."""
    dtype, rounding = (torch.float64, 1e-10) if backend == "eager" else (torch.float32, 1e-4)
    options = {"block_size": 2} if "block_size" in option_defaults(connection_class(name)) else {}
    connection, sublayers = randomised(name, sublayers=3, **options).to(dtype), make_sublayers(sublayers=3)
    torch._dynamo.reset()
    compiled = torch.compile(whole(connection, sublayers), fullgraph=True, backend=backend)
    expected = outputs_and_gradients(connection, whole(connection, sublayers), dtype)
    assert_equal_to_rounding(outputs_and_gradients(connection, compiled, dtype), expected, rounding)


def test_every_option_of_attnres_is_in_a_variant():
    tried = {option for _, options in VARIANTS for option in options}
    assert {field.name for field in dataclasses.fields(AttnResOptions)} <= tried


@pytest.mark.parametrize("other", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", ["block:block_size=3", "rms-block:block_size=3", "window:window=2"])
@torch.no_grad()
def test_decoding_where_outputs_have_another_dtype(name, other):
    """The loop for few tokens, in which Block reads with little Python, against that of every connection."""
    connection, x, made = randomised(name), torch.randn(1, 1, DIM), []

    def sublayer(h: Tensor) -> Tensor:
        made.append(h)
        return h.sin().to(other if len(made) % SITES == 4 else h.dtype)

    found, expected = (
        run(connection, connection.start(x), [sublayer] * SITES) for run in (type(connection).run, Connection.run)
    )
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.dtype == theirs.dtype
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("step", [SITES, 1])
@pytest.mark.parametrize("name", ["block", "rms-block"])
def test_a_block_is_summed_in_the_stream_s_dtype(name, step):
    """Under autocast outputs are narrower, and the plain residual does not round each sum to that."""
    connection, made = randomised(name, block_size=100), []

    def sublayer(h: Tensor) -> Tensor:
        made.append(h.tanh().bfloat16())
        return made[-1]

    values = connection.start(embedding(torch.float32))
    for site in range(0, SITES, step):
        values = connection.run(values, [sublayer] * step, site)
    outputs = [y.float() for y in made]
    torch.testing.assert_close(values[-1], sum(outputs))
    if name == "rms-block":
        torch.testing.assert_close(values[-2], sum(torch.rms_norm(y, (DIM,), eps=1e-6) for y in outputs))
