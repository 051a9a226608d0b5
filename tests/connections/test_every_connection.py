"""What holds for every connection of the folder and every option, with all parameters randomised."""

from __future__ import annotations

import copy

import pytest
import torch
from safetensors.torch import load, save
from torch import nn
from torch.nn.utils import parametrize, prune
from torch.utils.checkpoint import checkpoint

from attnres import Connection, connection_names, make_connection, mixing_matrix
from attnres.errors import UsageError
from tests.depth import DIM, SITES, VARIANTS, make_sublayers, randomise, randomised, trace, variant_id

every_variant = pytest.mark.parametrize("variant", VARIANTS, ids=variant_id)


def outputs_and_gradients(connection: Connection, x: torch.Tensor, forward) -> list[torch.Tensor]:
    """The readout, and the gradients of the embedding and of each parameter (zeros where there is none)."""
    x = x.detach().clone().requires_grad_()
    connection.zero_grad(set_to_none=True)
    h = forward(x)
    (h * torch.linspace(-1, 1, h.numel(), dtype=h.dtype).view_as(h)).sum().backward()
    grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in connection.parameters()]
    return [h.detach(), x.grad, *grads]


def whole(connection: Connection, sublayers):
    return lambda x: connection.readout(connection.run(connection.start(x), sublayers))


def assert_all_close(actual, expected, rtol=1e-4, atol=1e-5):
    for one, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(one, other.to(one.dtype), rtol=rtol, atol=atol * max(1.0, other.abs().max().item()))


@every_variant
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-13)])
def test_mixing_matrix_reproduces_every_input(variant, dtype, tolerance):
    """As exactly as the stream is: the connection's parameters are float32 all the same."""
    name, options = variant
    connection, sublayers = randomised(name, **options), make_sublayers()
    x = torch.randn(2, 3, DIM, dtype=dtype)
    matrix = mixing_matrix(connection, x, sublayers, per_channel=True, per_read=True)
    sources, inputs = trace(connection, x, sublayers)
    reads = max(connection.reads(site) for site in range(SITES + 1))
    assert matrix.shape == (2, 3, reads, SITES + 1, SITES + 1, DIM)
    rebuilt = torch.einsum("btrlid,ibtd->lrbtd", matrix, torch.stack(sources))
    for site, read in enumerate(inputs):
        for which, h in enumerate(read if isinstance(read, tuple) else (read,)):
            torch.testing.assert_close(rebuilt[site, which], h, rtol=tolerance, atol=tolerance * h.abs().max().item())
    for site in range(SITES + 1):  # the mean is over the reads that a site has
        own = matrix[:, :, : connection.reads(site), site].mean(2)
        torch.testing.assert_close(mixing_matrix(connection, x, sublayers, per_channel=True)[:, :, site], own)
        torch.testing.assert_close(mixing_matrix(connection, x, sublayers)[:, :, site], own.mean(-1))


@every_variant
def test_more_sublayers_than_sites_are_refused(variant):
    name, options = variant
    connection, sublayers = make_connection(name, DIM, SITES, **options), make_sublayers()
    values = connection.run(connection.start(torch.randn(2, DIM)), sublayers[:-1])
    with pytest.raises(UsageError, match=f"has {SITES} sites; 2 sublayers from {SITES - 1} on do not fit"):
        connection.run(values, sublayers[-2:], first=SITES - 1)


@every_variant
def test_values_of_another_site_are_refused(variant):
    """Where their number tells: the readout before the depth is run through, a part left out or run twice."""
    name, options = variant
    connection, sublayers = make_connection(name, DIM, SITES, **options), make_sublayers()
    values, counts = connection.start(torch.randn(2, DIM)), []
    for site in range(SITES + 1):
        counts.append(len(values))
        assert connection.value_count(site) in (len(values), None)
        values = connection.run(values, sublayers[site : site + 1], site)
    connection.readout(values)
    if len(set(counts)) == 1:
        return
    embedding = connection.start(torch.randn(2, DIM))
    with pytest.raises(UsageError, match=f"before site {SITES} of {SITES} there are .* run all sublayers first"):
        connection.readout(embedding)
    with pytest.raises(UsageError, match=r"before site 3 of .* let run begin where the one before it ended"):
        connection.run(embedding, sublayers[3:], first=3)


@every_variant
def test_a_sublayer_that_returns_no_tensor_is_named(variant):
    name, options = variant
    connection = make_connection(name, DIM, SITES, **options)
    with pytest.raises(UsageError, match="its output tensor alone, not tuple"):
        connection.run(connection.start(torch.randn(2, DIM)), [lambda h, *_: (h, None)] * SITES)


@every_variant
@pytest.mark.parametrize(
    ("stream", "sublayers"), [("float64", "float64"), ("float16", "float32"), ("bfloat16", "float32")]
)
def test_a_stream_of_another_dtype_than_the_parameters(variant, stream, sublayers):
    name, options = variant
    connection, of_sublayers = randomised(name, **options), getattr(torch, sublayers)
    values = connection.start(torch.randn(2, DIM, dtype=getattr(torch, stream)))
    h = connection.readout(connection.run(values, [lambda h, *_: h.to(of_sublayers).tanh()] * SITES))
    assert h.isfinite().all() and h.dtype in (getattr(torch, stream), of_sublayers)


@every_variant
def test_a_float64_stream_has_float64_digits(variant):
    """Parameters of float32 are as good there as the same numbers in float64."""
    name, options = variant
    connection, x = randomised(name, **options), torch.randn(2, 3, DIM, dtype=torch.float64)
    sublayers = [lambda h, *_: torch.tanh(h)] * SITES
    expected = whole(copy.deepcopy(connection).double(), sublayers)(x)
    torch.testing.assert_close(whole(connection, sublayers)(x), expected, rtol=1e-12, atol=1e-12)


@every_variant
def test_shapes_without_numbers(variant):
    """On the meta device, where a large model is laid out before it has memory."""
    name, options = variant
    connection = randomised(name, **options).to("meta")
    x = torch.randn(2, 3, DIM, device="meta")
    assert whole(connection, [lambda h, *_: torch.tanh(h)] * SITES)(x).shape == x.shape


@every_variant
def test_no_site_sees_a_later_source(variant):
    name, options = variant
    matrix = mixing_matrix(randomised(name, **options), torch.randn(2, 3, DIM), make_sublayers())
    assert torch.equal(matrix.triu(1), torch.zeros_like(matrix))
    assert (matrix.diagonal(dim1=-2, dim2=-1)[..., :1] != 0).all(), "the first site must see the embedding"


@every_variant
def test_run_split_anywhere_equals_the_whole(variant):
    name, options = variant
    connection, sublayers = randomised(name, **options), make_sublayers()
    x = torch.randn(2, 3, DIM)
    expected = outputs_and_gradients(connection, x, whole(connection, sublayers))
    for site in range(SITES + 1):

        def split(x, site=site):
            values = connection.run(connection.start(x), sublayers[:site])
            return connection.readout(connection.run(values, sublayers[site:], first=site))

        assert_all_close(outputs_and_gradients(connection, x, split), expected)


@every_variant
def test_a_token_alone_is_read_as_among_others(variant):
    """As while decoding, where nothing is gained by two phases."""
    name, options = variant
    connection, sublayers = randomised(name, **options), make_sublayers()
    x, forward = torch.randn(1, 3, DIM), whole(connection, sublayers)
    with torch.no_grad():
        alone = torch.cat([forward(token) for token in x.split(1, 1)], 1)
        assert_all_close([alone], [forward(x)])


@every_variant
def test_fused_ways_equal_weigh_gather_and_scatter(variant):
    name, options = variant
    connection, sublayers = randomised(name, **options), make_sublayers()
    plain = copy.deepcopy(connection)
    plain.mix = lambda values, site: Connection.mix(plain, values, site)
    plain.absorb = lambda *arguments: Connection.absorb(plain, *arguments)
    plain.run = lambda values, sublayers, first=0: Connection.run(plain, values, sublayers, first)
    x = torch.randn(2, 3, DIM)
    expected = outputs_and_gradients(plain, x, whole(plain, sublayers))
    assert_all_close(outputs_and_gradients(connection, x, whole(connection, sublayers)), expected)


@every_variant
def test_activation_checkpointing_changes_nothing(variant):
    name, options = variant
    connection, sublayers = randomised(name, **options), make_sublayers()
    x = torch.randn(2, 3, DIM)

    def recomputed(x):
        values = connection.start(x)
        for first in range(0, SITES, 2):
            values = checkpoint(connection.run, values, sublayers[first : first + 2], first, use_reentrant=False)
        return connection.readout(values)

    expected = outputs_and_gradients(connection, x, whole(connection, sublayers))
    assert_all_close(outputs_and_gradients(connection, x, recomputed), expected)


@every_variant
def test_compile_fullgraph_changes_nothing(variant):
    name, options = variant
    connection, sublayers = randomised(name, **options), make_sublayers()
    x = torch.randn(2, 3, DIM)
    forward = whole(connection, sublayers)
    torch._dynamo.reset()
    compiled = torch.compile(forward, fullgraph=True, backend="aot_eager")
    expected = outputs_and_gradients(connection, x, forward)
    assert_all_close(outputs_and_gradients(connection, x, compiled), expected)


@pytest.mark.parametrize("name", ["block", "x0"])
def test_inductor_changes_nothing(name):
    connection, sublayers = randomised(name), make_sublayers()
    x = torch.randn(2, 3, DIM)
    forward = whole(connection, sublayers)
    torch._dynamo.reset()
    expected = outputs_and_gradients(connection, x, forward)
    assert_all_close(outputs_and_gradients(connection, x, torch.compile(forward, fullgraph=True)), expected)


@every_variant
def test_gradients_against_finite_differences(variant):
    name, options = variant
    if name == "haares":  # a factor that is a constant to the gradient is none to a difference
        options = {**options, "detach": False}
    connection = randomised(name, dim=12, sites=4, **options).double()
    sublayers = make_sublayers(12, 4)
    x = torch.randn(2, 12, dtype=torch.float64, requires_grad=True)
    names, parameters = zip(*connection.named_parameters(), strict=True) if list(connection.parameters()) else ((), ())

    def forward(x, *values):
        named = dict(zip(names, values, strict=True))
        return torch.func.functional_call(_Whole(connection, sublayers), _prefixed(named), (x,))

    assert torch.autograd.gradcheck(forward, (x, *parameters), fast_mode=True)


@every_variant
def test_float32_gradients_against_float64(variant):
    name, options = variant
    connection, x = randomised(name, **options), torch.randn(2, 3, DIM)
    exact = copy.deepcopy(connection).double()
    expected = outputs_and_gradients(exact, x.double(), whole(exact, make_sublayers()))
    actual = outputs_and_gradients(connection, x, whole(connection, make_sublayers()))
    largest = max(other.norm() for other in expected)  # some gradients are zero but for rounding
    for one, other in zip(actual, expected, strict=True):
        assert (one.double() - other).norm() <= 1e-4 * other.norm() + 1e-6 * largest


@every_variant
def test_save_and_load(variant):
    name, options = variant
    connection, sublayers = randomised(name, **options), make_sublayers()
    twin = make_connection(name, dim=DIM, sites=SITES, **options)
    twin.load_state_dict(load(save(connection.state_dict())))
    x = torch.randn(2, 3, DIM)
    assert torch.equal(whole(twin, sublayers)(x), whole(connection, sublayers)(x))


@every_variant
def test_state_lives_in_values_alone(variant):
    """Two micro-batches taken in turns, as a pipeline takes them, do not see each other; no value is mutated."""
    name, options = variant
    connection, sublayers = randomised(name, **options), make_sublayers()
    xs = [torch.randn(2, 3, DIM), torch.randn(2, 3, DIM)]
    expected = [whole(connection, sublayers)(x) for x in xs]
    values = [connection.start(x) for x in xs]
    for site, sublayer in enumerate(sublayers):
        for batch in range(2):
            versions = [value._version for value in values[batch]]
            after = connection.run(values[batch], [sublayer], first=site)
            assert [value._version for value in values[batch]] == versions
            values[batch] = after
    for value, h in zip(values, expected, strict=True):
        torch.testing.assert_close(connection.readout(value), h)


@every_variant
def test_parameters_are_per_site(variant):
    """A pipeline stage needs only the parameters of its own sites: no two sites share one."""
    name, options = variant
    connection, sublayers = randomised(name, **options), make_sublayers()
    seen: set[str] = set()
    values = tuple(value.detach() for value in connection.start(torch.randn(2, DIM)))
    for site in range(SITES + 1):
        connection.zero_grad(set_to_none=True)
        step = sublayers[site : site + 1]  # none at the readout
        after = connection.run(values, step, first=site) if step else (connection.readout(values),)
        if any(value.requires_grad for value in after):
            sum(value.sum() for value in after).backward()
        used = {key for key, parameter in connection.named_parameters() if parameter.grad is not None}
        assert not used & seen, f"site {site} shares {used & seen} with an earlier site"
        seen |= used
        values = tuple(value.detach() for value in after)


@every_variant
def test_bfloat16_keeps_the_stream_dtype_and_stays_close(variant):
    name, options = variant
    connection = randomised(name, **options)
    x = torch.randn(2, 3, DIM)
    exact = whole(connection, make_sublayers())(x)
    rounded = whole(connection, make_sublayers())(x.bfloat16())
    assert rounded.dtype == torch.bfloat16
    assert (rounded.float() - exact).norm() < 0.1 * exact.norm()


@every_variant
def test_maths_is_in_float32_with_parameters_in_bfloat16(variant):
    """As after `model.bfloat16()`: of the same numbers as parameters the same comes out."""
    name, options = variant
    connection = randomised(name, **options)
    with torch.no_grad():
        for parameter in connection.parameters():
            parameter.copy_(parameter.bfloat16())
    x, narrow = torch.randn(2, 3, DIM).bfloat16(), copy.deepcopy(connection).bfloat16()
    assert torch.equal(whole(narrow, make_sublayers())(x), whole(connection, make_sublayers())(x))


@every_variant
def test_autocast_leaves_the_connection_alone(variant):
    """Matrix products inside a connection stay in float32 under autocast; only the sublayers are rounded."""
    name, options = variant
    connection, x = randomised(name, **options), torch.randn(2, 3, DIM)
    rounded = [lambda *h, f=f: f(*h).bfloat16() for f in make_sublayers()]
    expected = whole(connection, rounded)(x)

    def fenced(f):
        def sublayer(*h):
            with torch.autocast("cpu", enabled=False):
                return f(*h)

        return sublayer

    with torch.autocast("cpu", dtype=torch.bfloat16):
        actual = whole(connection, [fenced(f) for f in rounded])(x)
    assert actual.dtype == torch.float32
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", connection_names())
def test_start_is_finite_and_trainable(name):
    """At its own start every connection passes gradient to the embedding, over awkward sizes too."""
    for dim, sites, shape in ((7, 1, (3,)), (5, 6, (0, 4)), (9, 3, ())):
        connection = make_connection(name, dim=dim, sites=sites)
        x = torch.randn(*shape, dim, requires_grad=True)
        h = whole(connection, make_sublayers(dim, sites))(x)
        h.sum().backward()
        assert h.shape == x.shape and h.isfinite().all() and x.grad.isfinite().all()


def test_the_suite_can_fail():
    """A scatter that forgets a quarter of y must be caught by the identity test's comparison."""
    connection, sublayers = make_connection("residual", dim=DIM, sites=SITES), make_sublayers()
    randomise(connection)
    x = torch.randn(2, DIM)
    matrix = mixing_matrix(connection, x, sublayers)
    connection.scatter = lambda values, weights, site, h, y: (values[0] + 0.75 * y,)
    sources, inputs = trace(connection, x, sublayers)
    rebuilt = torch.einsum("tli,itd->ltd", matrix, torch.stack(sources))
    assert not torch.allclose(rebuilt[-1], inputs[-1], rtol=1e-5)


class _Whole(torch.nn.Module):
    def __init__(self, connection, sublayers):
        super().__init__()
        self.connection, self.sublayers = connection, sublayers

    def forward(self, x):
        return whole(self.connection, self.sublayers)(x)


def _prefixed(named):
    return {f"connection.{key}": value for key, value in named.items()}


@every_variant
@pytest.mark.parametrize("sites", [SITES, 8])
def test_every_parameter_gets_a_gradient(variant, sites):
    """One that never does stops DistributedDataParallel at the second step."""
    name, options = variant
    connection, x = randomised(name, sites=sites, **options), torch.randn(2, 3, DIM, requires_grad=True)
    whole(connection, make_sublayers(sites=sites))(x).sum().backward()
    assert [name for name, parameter in connection.named_parameters() if parameter.grad is None] == []


@every_variant
def test_what_is_made_without_memory_and_loaded_is_the_same(variant):
    """As checkpoints of large models are: no buffer may be left with what the memory held."""
    name, options = variant
    connection, x = randomised(name, **options), torch.randn(2, 3, DIM)
    expected = whole(connection, make_sublayers())(x)
    with torch.device("meta"):
        moved, assigned = (make_connection(name, DIM, SITES, **options) for _ in range(2))
    moved.to_empty(device="cpu").load_state_dict(connection.state_dict())
    assigned.load_state_dict(connection.state_dict(), assign=True)
    for loaded in (moved, assigned):
        torch.testing.assert_close(whole(loaded, make_sublayers())(x), expected, rtol=0, atol=0)


@pytest.mark.parametrize("variant", [("haares", {"reads": "qkv"}), ("rms-block", {"gate": True})], ids=variant_id)
def test_a_state_with_parameters_that_nothing_used_loads(variant):
    """They were there at every site once."""
    name, options = variant
    connection, x = randomised(name, **options), torch.randn(2, 3, DIM)
    state, entries = connection.state_dict(), "bias" if name == "haares" else "gate"
    shape = next(value.shape for key, value in state.items() if key.startswith(entries))
    older = {f"{entries}.{site}": torch.ones(shape) for site in range(SITES)} | state
    assert len(older) > len(state)
    loaded = make_connection(name, DIM, SITES, **options)
    loaded.load_state_dict(older)
    assert torch.equal(whole(loaded, make_sublayers())(x), whole(connection, make_sublayers())(x))


class Doubled(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * x


@every_variant
def test_each_parameter_of_a_list_may_be_made_of_others(variant):
    """By torch.nn.utils.prune, which keeps half of it, or by parametrize, which doubles it."""
    name, options = variant
    connection, sublayers, x = randomised(name, **options), make_sublayers(), torch.randn(2, 3, DIM)
    lists = [part for part in connection.modules() if isinstance(part, nn.ParameterList)]
    named = [(part, key) for part in lists for key, parameter in part.named_parameters(recurse=False)]
    expected = copy.deepcopy(connection)
    copies = [p for part in expected.modules() if isinstance(part, nn.ParameterList) for p in part.parameters()]
    for number, (part, key) in enumerate(named):
        if number % 2:
            parametrize.register_parametrization(part, key, Doubled())
        else:
            prune.random_unstructured(part, key, 0.5)
        copies[number].data = getattr(part, key).detach().clone()
    actual, plain = (outputs_and_gradients(c, x, whole(c, sublayers))[:2] for c in (connection, expected))
    assert_all_close(actual, plain)
    assert all(parameter.grad is not None for parameter in connection.parameters())
