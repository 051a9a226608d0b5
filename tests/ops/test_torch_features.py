"""The operators under what torch does to a model: compile, checkpointing, hooks, transforms, threads."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import pytest
import torch
from torch.autograd import forward_ad
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

from attnres.ops import Norm, attend, attend_blocks, backends, depth_attention, library, merge_partial, operators, read
from tests.ops.cases import assert_near, make_sources, make_vector, value_and_gradients

DIM = 40
NORM = (torch.linspace(-1, 1, DIM), 1e-5, 1.0)

pytestmark = pytest.mark.usefixtures("kernel")


def inputs_of(count: int = 4, *shape: int) -> list[torch.Tensor]:
    return [*make_sources(count, *(shape or (3, 15)), DIM), make_vector(DIM), make_vector(DIM, centre=1.0)]


def one_phase(*tensors):
    return depth_attention(tensors[:-2], *tensors[-2:])


def two_phases(*tensors):
    *sources, query, gain = tensors
    out, lse = attend_blocks(sources[:-1], torch.stack([query * gain, query]))
    return merge_partial(sources[-1], query * gain, out[0], lse[0]) + out[1]


def both(*tensors):
    return one_phase(*tensors) + two_phases(*tensors)


def heads_too(*tensors):
    *sources, query, gain = tensors
    outs, lses = attend(sources[:-1], [query.view(5, -1)], [gain.view(5, -1)], (), 1e-6, torch.float32)
    (h,), _ = read(sources[-1:], None, [query.view(5, -1)], [], (*outs, *lses), 1e-6, torch.float32)
    return both(*tensors) + h


def test_compile_fullgraph():
    torch._dynamo.reset()
    compiled, tensors = torch.compile(heads_too, fullgraph=True, backend="aot_eager"), inputs_of()
    assert_near(value_and_gradients(compiled, *tensors), value_and_gradients(heads_too, *tensors))


def test_calls_of_many_lengths_compile_to_one_graph():
    """spec.md 13, trap 13: a growing list of sources must not run into the recompile limit."""

    def grow(x, query, gain):
        sources = [x]
        for _ in range(torch._dynamo.config.recompile_limit + 2):
            sources.append(torch.tanh(depth_attention(sources, query, gain)))
        return sources[-1]

    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    x, query, gain = inputs_of(1, 3)
    with torch.no_grad():
        found = torch.compile(grow, fullgraph=True, backend="eager")(x, query, gain)
        assert_near([found], [grow(x, query, gain)])
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


@pytest.mark.parametrize("reentrant", [True, False])
def test_activation_checkpointing(reentrant):
    def recomputed(*tensors):
        return checkpoint(both, *tensors, use_reentrant=reentrant)

    tensors = inputs_of()
    leaves = [[x.clone().requires_grad_() for x in tensors] for _ in range(2)]
    for function, inputs in zip((both, recomputed), leaves, strict=True):
        function(*inputs).sin().sum().backward()
    assert all(torch.equal(one.grad, other.grad) for one, other in zip(*leaves, strict=True))


@contextlib.contextmanager
def saved_tensors():
    """What autograd keeps, seen through hooks as offloading sees it."""
    saved: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x) or x, lambda x: x):
        yield saved


def test_saved_besides_the_sources_is_small():
    """Per source and token a few numbers: no outputs, no products."""
    count = 9
    *sources, query, gain = (x.requires_grad_() for x in inputs_of(count, 64))
    known = {x.data_ptr() for x in (*sources, query, gain)}
    with saved_tensors() as saved:
        depth_attention(sources, query, gain)
        attend_blocks(sources, torch.stack([query, gain]))
    assert {x.data_ptr() for x in sources} <= {x.data_ptr() for x in saved}, "hooks must see the sources"
    extra = [x.numel() for x in saved if x.data_ptr() not in known and x.numel() > DIM]
    assert sum(extra) <= 64 * (2 * count + 1 + 3 * count + 2)


def transforms():
    """Each as a function of the tensors, and all of them with a nonlinearity after the operator."""
    total = lambda *x: (both(*x) ** 2).sum()  # noqa: E731
    everything, over_tokens = tuple(range(6)), (0,) * 4 + (None, None)
    return {
        "vmap over queries and another axis": lambda *x: torch.func.vmap(both, (None, 1, None, None, 0, None), 1)(
            x[0][:, 0], x[1], *(v[:, 0] for v in x[2:4]), torch.stack([x[4]] * x[1].shape[1]), x[5]
        ),
        "a gradient for each member": torch.func.vmap(torch.func.grad(total, argnums=everything), in_dims=over_tokens),
        "grad of vmap": torch.func.grad(
            lambda *x: (torch.func.vmap(both, in_dims=over_tokens)(*x) ** 2).sum(), argnums=everything
        ),
    }


@pytest.fixture
def kernel_calls(monkeypatch):
    """How often the fused operator ran, counted where `attnres.ops` calls it."""
    calls = []
    counted = lambda *x: (calls.append(x), library.attend(*x))[1]  # noqa: E731
    monkeypatch.setattr(operators, "library", SimpleNamespace(attend=counted))
    return calls


@pytest.mark.parametrize("name", transforms())
def test_func_transforms(name, kernel_calls, monkeypatch):
    """They go through the kernel and equal those of plain PyTorch."""
    tensors = inputs_of(4, 2, 3)
    actual = tree_leaves(transforms()[name](*tensors))
    assert kernel_calls, "the reference ran instead"
    monkeypatch.setattr(backends, "_obstacle", lambda *_: "anything")
    assert_near(actual, tree_leaves(transforms()[name](*tensors)), 400)


def test_second_derivatives_and_forward_mode_are_plain_pytorch_s(kernel_calls):
    """Held to float64: an operator with a backward formula alone would lose tangents in silence."""
    tensors = inputs_of(3, 2)

    def derivatives(*x):
        total = lambda query: (both(*x[:-2], query, x[-1]) ** 2).sum()  # noqa: E731
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(x[-2], torch.ones_like(x[-2]))
            tangent = forward_ad.unpack_dual(total(dual)).tangent
        twice = torch.func.grad(lambda q: torch.func.grad(total)(q).square().sum())(x[-2])
        return [tangent, torch.func.hessian(total)(x[-2]), twice]

    assert_near(derivatives(*tensors), derivatives(*(x.double() for x in tensors)), 1000)
    assert not kernel_calls


@pytest.mark.parametrize(("merges", "norm"), [(False, ()), (True, ()), (True, NORM)])
def test_registration(merges, norm):
    """torch's own checks of schema, fake tensors, autograd and ahead-of-time tracing."""
    *sources, query, gain = (x.requires_grad_() for x in inputs_of(2, 3))
    priors = [torch.randn(3, DIM), torch.randn(3)] if merges else []
    added = [torch.randn(3, DIM, requires_grad=True)] if merges else []
    arguments = (sources, [query], [gain], priors, added, 1e-6, 2.0, torch.float32, *norm)
    torch.library.opcheck(library.attend, arguments)
    with torch.no_grad():
        outs, lses, sums, statistics = library.attend(*arguments)
    saved = (sources, [query], [gain], [], lses, priors[::-1], statistics, 2.0, *norm)
    checks = ("test_schema", "test_faketensor", "test_autograd_registration")  # it has no gradient of its own
    torch.library.opcheck(library.attend_backward, ([outs[0].sin()], [], sums, *saved), test_utils=checks)


@pytest.mark.parametrize("gained", [True, False])
def test_the_operators_without_gradients_are_the_general_one_to_the_bit(gained):
    """Decoding calls them: a token that is read again must be what it was in the prompt."""
    operator = torch.ops.attnres  # not through `library`, which tests of rounding replace
    *sources, query, gain = inputs_of(3)
    gains = [gain] if gained else []
    rest = (1e-6, 2.0, torch.float32)
    (out,), *_ = operator.attend(sources, [query], gains, [], [], *rest)
    gain = gain if gained else None
    assert torch.equal(operator.attend_one(sources, query, gain, None, *rest)[0], out)
    (out,), _, (total,), _ = operator.attend(sources[:-1], [query], gains, [], [sources[-1]], *rest, *NORM)
    found, (summed,) = operator.attend_one(sources[:-1], query, gain, sources[-1], *rest, *NORM)
    assert torch.equal(found, out) and torch.equal(summed, total)
    checks = ("test_schema", "test_faketensor")
    for added, norm in ((None, ()), (sources[-1], NORM)):
        torch.library.opcheck(
            operator.attend_one.default, (sources, query, gain, added, *rest, *norm), test_utils=checks
        )


def test_a_norm_under_torch_func_and_compilers():
    """Under a compiler it is torch's own, and a part of the operator under torch.func."""
    *sources, query, gain = inputs_of(3)

    def total(*x):
        (out,), _ = read(x[:3], x[2], x[3:4], x[4:5], (), 1e-6, torch.float32, norm=Norm(x[5], 1e-5, 1.0))
        return out.sin().sum()

    leaves = [x.requires_grad_() for x in (*sources, query, gain, torch.randn(DIM))]
    expected = torch.autograd.grad(total(*leaves), leaves)
    plain = [x.detach() for x in leaves]
    assert_near(torch.func.grad(total, argnums=tuple(range(6)))(*plain), expected)
    compiled = torch.compile(total, fullgraph=True, backend="aot_eager")
    assert_near(torch.autograd.grad(compiled(*leaves), leaves), expected)


def test_gradients_repeat_to_the_bit_whatever_the_threads():
    tensors, results = inputs_of(5, 501), []
    for threads in (1, 1, 3):
        torch.set_num_threads(threads)  # the next test begins with one again
        results.append(value_and_gradients(both, *tensors))
    for other in results[1:]:
        assert all(map(torch.equal, results[0], other))


def test_nothing_is_read_before_it_is_written():
    """Fresh memory is filled with NaN: any output or gradient that is not wholly written shows it."""
    torch.use_deterministic_algorithms(True)
    assert torch.utils.deterministic.fill_uninitialized_memory
    try:
        assert torch.empty(3).isnan().all()
        for count, dim in ((1, 7), (3, 33), (17, 64)):
            tensors = [*make_sources(count + 1, 65, dim), make_vector(dim), make_vector(dim, centre=1.0)]
            results = value_and_gradients(both, *tensors)
            groups = tensors[1:-2], tensors[-2:-1], [], [], tensors[:1]
            results += tree_leaves(library.attend(*groups, 1e-6, 1.0, torch.bfloat16))
            prior = [tensors[0], tensors[0].sum(-1)]
            for sources, added in ((tensors[1:-2], tensors[:1]), ([], [])):
                leaves = [x.requires_grad_() for x in (*sources, tensors[-2], tensors[-1])]
                (out,), *_ = library.attend(
                    sources, tensors[-2:-1], [], prior, added, 1e-6, 1.0, torch.float32, tensors[-1], 1e-6, 0.0
                )
                results += [out.detach(), *torch.autograd.grad(out.sum(), leaves, materialize_grads=True)]
            normalised = tensors[0], tensors[1:2], tensors[:1], 1e-6, torch.bfloat16
            results += tree_leaves(torch.ops.attnres.add_normalised(*normalised))
            assert all(x.isfinite().all() for x in results)
    finally:
        torch.use_deterministic_algorithms(False)
