"""The operators under what torch does to a model: compile, checkpointing, hooks, transforms, threads."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest
import torch
from torch.autograd import forward_ad
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

from attnres.connections import make_connection
from attnres.errors import UsageError
from attnres.ops import attend_blocks, backends, depth_attention, library, merge_partial, operators
from tests.ops.cases import assert_near, make_sources, make_vector, value_and_gradients

DIM = 40


def inputs_of(count: int = 4, *shape: int) -> list[torch.Tensor]:
    return [*make_sources(count, *(shape or (3, 15)), DIM), make_vector(DIM), make_vector(DIM, centre=1.0)]


def one_phase(*tensors):
    return depth_attention(tensors[:-2], *tensors[-2:])


def two_phases(*tensors):
    *sources, query, gain = tensors
    out, lse = attend_blocks(sources[:-1], torch.stack([query * gain, query]))
    return merge_partial(sources[-1], query * gain, out[0], lse[0]) + out[1]


every_form = pytest.mark.parametrize("form", [one_phase, two_phases])


@pytest.mark.parametrize(
    ("form", "backend"), [(one_phase, "aot_eager"), (two_phases, "aot_eager"), (two_phases, "inductor")]
)
def test_compile_fullgraph(form, backend):
    torch._dynamo.reset()
    compiled, tensors = torch.compile(form, fullgraph=True, backend=backend), inputs_of()
    assert_near(value_and_gradients(compiled, *tensors), value_and_gradients(form, *tensors))


def test_calls_of_many_lengths_compile_to_one_graph():
    """SPEC.md 13, trap 13: a growing list of sources must not run into the recompile limit."""

    def grow(x, query, gain):
        sources = [x]
        for _ in range(20):
            sources.append(torch.tanh(depth_attention(sources, query, gain)))
        return sources[-1]

    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    x, query, gain = inputs_of(1, 3)
    compiled = torch.compile(grow, fullgraph=True, backend="aot_eager")
    assert_near(value_and_gradients(compiled, x, query, gain), value_and_gradients(grow, x, query, gain))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


@every_form
@pytest.mark.parametrize("reentrant", [True, False])
def test_activation_checkpointing(form, reentrant):
    def recomputed(*tensors):
        return checkpoint(form, *tensors, use_reentrant=reentrant)

    tensors = inputs_of()
    expected = value_and_gradients(form, *tensors)
    for actual, other in zip(value_and_gradients(recomputed, *tensors), expected, strict=True):
        assert torch.equal(actual, other)


@pytest.mark.parametrize("count", [1, 9])
def test_saved_besides_the_sources_is_small(count):
    """Seen through saved-tensor hooks, as offloading sees it: per source and token, at most a few numbers."""
    *sources, query, gain = (x.requires_grad_() for x in inputs_of(count, 64))
    known = {x.data_ptr() for x in (*sources, query, gain)}
    saved: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x) or x, lambda x: x):
        depth_attention(sources, query, gain)
        attend_blocks(sources, torch.stack([query, gain]))
    assert {x.data_ptr() for x in sources} <= {x.data_ptr() for x in saved}, "hooks must see the sources"
    extra = sum(x.numel() for x in saved if x.data_ptr() not in known and x.dim() > 0 and x.shape[-1] != DIM)
    assert extra <= 64 * (2 * count + 1 + 3 * count + 2)
    full_size = [x for x in saved if x.data_ptr() not in known and x.shape[-1:] == (DIM,) and x.numel() > DIM]
    assert not full_size, "neither outputs nor products are saved"


def test_merge_saves_its_output_and_not_its_prior():
    """h is kept by the norm that follows anyway; out_j can go at once."""
    partial, out = torch.randn(64, DIM, requires_grad=True), torch.randn(64, DIM, requires_grad=True)
    saved: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x) or x, lambda x: x):
        h = merge_partial(partial, make_vector(DIM), out, torch.randn(64))
    pointers = {x.data_ptr() for x in saved if x.numel() > DIM}
    assert out.data_ptr() not in pointers and h.data_ptr() in pointers


def test_merge_saves_its_prior_where_its_output_is_rounded():
    out = torch.randn(64, DIM, requires_grad=True)
    saved: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x) or x, lambda x: x):
        h = merge_partial(torch.randn(64, DIM).bfloat16(), make_vector(DIM), out, torch.randn(64))
    pointers = {x.data_ptr() for x in saved if x.numel() > DIM}
    assert out.data_ptr() in pointers and h.data_ptr() not in pointers


def transforms_of(form):
    """Each as a function of the tensors, and all of them with a nonlinearity after the operator."""
    total = lambda *x: (form(*x) ** 2).sum()  # noqa: E731
    everything, over_tokens = tuple(range(6)), (0,) * 4 + (None, None)
    return {
        "grad": torch.func.grad(total, argnums=everything),
        "vjp": lambda *x: torch.func.vjp(form, *x)[1](torch.linspace(-1, 1, x[0].numel()).view_as(x[0])),
        "jacrev": torch.func.jacrev(lambda *x: form(*x).sum(-1), argnums=everything),
        "vmap": torch.func.vmap(form, in_dims=over_tokens),
        "vmap over queries and another axis": lambda *x: torch.func.vmap(form, (None, 1, None, None, 0, None), 1)(
            x[0][:, 0], x[1], *(v[:, 0] for v in x[2:4]), torch.stack([x[4]] * x[1].shape[1]), x[5]
        ),
        "vmap of vmap": torch.func.vmap(torch.func.vmap(form, in_dims=over_tokens), in_dims=over_tokens),
        "a gradient for each member": torch.func.vmap(torch.func.grad(total, argnums=everything), in_dims=over_tokens),
        "grad of vmap": torch.func.grad(
            lambda *x: (torch.func.vmap(form, in_dims=over_tokens)(*x) ** 2).sum(), argnums=everything
        ),
    }


@contextlib.contextmanager
def reference_only():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backends, "_obstacle", lambda *_: "anything")
        yield


@pytest.fixture
def kernel_calls(monkeypatch):
    """How often the fused operator ran, counted where `attnres.ops` calls it."""
    calls = []
    counted = lambda *x: (calls.append(x), library.attend(*x))[1]  # noqa: E731
    monkeypatch.setattr(operators, "library", SimpleNamespace(attend=counted))
    return calls


@every_form
@pytest.mark.parametrize("name", transforms_of(one_phase))
def test_func_transforms(form, name, kernel_calls):
    """They go through the kernel and equal those of plain PyTorch."""
    tensors = inputs_of(4, 2, 3)
    actual = tree_leaves(transforms_of(form)[name](*tensors))
    assert kernel_calls, "the reference ran instead"
    with reference_only():
        expected = tree_leaves(transforms_of(form)[name](*tensors))
    assert_near(actual, expected, 5e-5)


@every_form
def test_second_derivatives_and_forward_mode_are_the_reference_s(form, kernel_calls):
    tensors = inputs_of(4, 2, 3)
    total = lambda query: (form(*tensors[:-2], query, tensors[-1]) ** 2).sum()  # noqa: E731
    query = tensors[-2]
    gradient, step = torch.func.grad(total), 1e-2 * query / query.norm()
    slope, bend = gradient(query), (gradient(query + step) - gradient(query - step)) / 2
    kernel_calls.clear()
    _, tangent = torch.func.jvp(total, (query,), (query,))
    assert_near([tangent], [(slope * query).sum()], 1e-4)
    assert_near([torch.func.hessian(total)(query) @ step], [bend], 1e-2)
    assert_near([torch.func.grad(lambda x: (torch.func.grad(total)(x) * step).sum())(query)], [bend], 1e-2)
    assert not kernel_calls


def test_a_batch_of_none():
    *sources, query, gain = inputs_of()
    none = [x.new_empty(3, 0, DIM) for x in sources]

    def attend(*v):
        return depth_attention(v, query, gain)

    gradient = torch.func.grad(lambda *v: attend(*v).sum(), argnums=(0, 1))
    assert torch.func.vmap(attend, in_dims=1)(*none).shape == (0, 3, DIM)
    assert [g.shape for g in torch.func.vmap(gradient, in_dims=1)(*none)] == [(0, 3, DIM)] * 2


def test_transforms_compile():
    """To the same, or to an error: a tangent or a second derivative may not vanish in silence."""
    torch._dynamo.reset()
    tensors = inputs_of(4, 2, 3)
    total = lambda *x: (one_phase(*x) ** 2).sum()  # noqa: E731
    each = torch.func.vmap(torch.func.grad(total, argnums=tuple(range(6))), in_dims=(0,) * 4 + (None, None))
    assert_near(torch.compile(each, fullgraph=True, backend="aot_eager")(*tensors), each(*tensors))

    def tangent(query):
        return torch.func.jvp(lambda q: total(*tensors[:-2], q, tensors[-1]), (query,), (query,))[1]

    assert_near([torch.compile(tangent, backend="aot_eager")(tensors[-2])], [tangent(tensors[-2])])

    def curvature(query):
        gradient = torch.func.grad(lambda q: total(*tensors[:-2], q, tensors[-1]))
        return torch.func.grad(lambda q: gradient(q).square().sum())(query)

    with pytest.raises(RuntimeError, match="cannot be differentiated twice"):
        torch.compile(curvature, backend="aot_eager")(tensors[-2])


@every_form
def test_offloading_the_saved_tensors(form):
    """A saved-tensor hook may give back copies."""
    tensors = inputs_of()
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x.clone(), lambda x: x.clone()):
        actual = value_and_gradients(form, *tensors)
    for one, other in zip(actual, value_and_gradients(form, *tensors), strict=True):
        assert torch.equal(one, other)


def test_forward_mode_keeps_its_tangent():
    *sources, query, gain = inputs_of()
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(query, torch.ones(DIM))
        tangent = forward_ad.unpack_dual(depth_attention(sources, dual, gain)).tangent
    _, expected = torch.func.jvp(lambda q: depth_attention(sources, q, gain), (query,), (torch.ones(DIM),))
    assert_near([tangent], [expected])


def test_what_the_kernel_cannot_do_is_an_error():
    *sources, query, gain = inputs_of()
    by_name = lambda q: depth_attention(sources, q, gain, backend="cpu").square().sum()  # noqa: E731
    with pytest.raises(UsageError, match="does not take second derivatives; use"):
        torch.func.grad(lambda q: torch.func.grad(by_name)(q).sum())(query)
    with pytest.raises(UsageError, match="does not take forward-mode differentiation; use"):
        torch.func.jvp(by_name, (query,), (query,))
    query.requires_grad_()
    h = depth_attention(sources, query, gain, backend="cpu")
    (gradient,) = torch.autograd.grad(h.square().sum(), query, create_graph=True)
    with pytest.raises(UsageError, match="cannot be differentiated twice"):
        gradient.sum().backward()
    h = depth_attention(sources, query, gain)
    with pytest.raises(UsageError, match="no batch of gradients"):
        torch.autograd.grad(h, query, torch.randn(2, *h.shape), is_grads_batched=True, retain_graph=True)
    with forward_ad.dual_level(), pytest.raises(UsageError, match="no tangents of its gradients"):
        torch.autograd.grad(h, query, forward_ad.make_dual(torch.ones_like(h), torch.ones_like(h)))


@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize(("prior", "rounded"), [(False, False), (True, False), (True, True)])
def test_registration(prior, rounded, adds):
    """torch's own checks of schema, fake tensors, autograd and ahead-of-time tracing."""
    backends.native_backend("cpu")
    *sources, query, gain = (x.requires_grad_() for x in inputs_of(1 if prior else 3))
    priors = [torch.randn(3, 15, DIM), torch.randn(3, 15)] if prior else []
    added = [torch.randn(3, 15, DIM, requires_grad=True)] if adds else []
    arguments = (sources, [query], [gain], priors, added, 1e-6, 2.0, torch.float32)
    torch.library.opcheck(library.attend, arguments)
    with torch.no_grad():
        outs, lses, sums, statistics = library.attend(*arguments)
    of_merge = ([], lses, priors[::-1]) if rounded else (outs if prior else [], lses, priors[1:])
    saved = (sources, [query], [gain], *of_merge, statistics)
    checks = ("test_schema", "test_faketensor", "test_autograd_registration")  # it has no gradient of its own
    torch.library.opcheck(library.attend_backward, ([outs[0].sin()], [], sums, *saved, 2.0), test_utils=checks)


def test_backward_repeats_to_the_bit_whatever_the_threads():
    tensors = inputs_of(5, 501)
    try:
        results = []
        for threads in (1, 1, 2, 3):
            torch.set_num_threads(threads)
            results.append([*value_and_gradients(one_phase, *tensors), *value_and_gradients(two_phases, *tensors)])
    finally:
        torch.set_num_threads(1)
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


def test_nothing_is_read_before_it_is_written():
    """Fresh memory is filled with NaN: any output or gradient that is not wholly written shows it."""
    torch.use_deterministic_algorithms(True)
    assert torch.utils.deterministic.fill_uninitialized_memory
    try:
        assert torch.empty(3).isnan().all()
        for count, dim in ((1, 7), (3, 33), (17, 64)):
            tensors = [*make_sources(count + 1, 65, dim), make_vector(dim), make_vector(dim, centre=1.0)]
            results = [*value_and_gradients(one_phase, *tensors), *value_and_gradients(two_phases, *tensors)]
            assert all(x.isfinite().all() for x in results)
            groups = tensors[1:-2], tensors[-2:-1], [], [], tensors[:1]
            results = tree_leaves(library.attend(*groups, 1e-6, 1.0, torch.bfloat16))
            assert len(results) == 4 and all(x.isfinite().all() for x in results)
    finally:
        torch.use_deterministic_algorithms(False)


def test_large_results_reuse_memory_and_never_share_it():
    """A freed result's memory serves the next of its size; what is alive, in whichever thread, keeps its own."""
    x = torch.ones(1024, 1024)
    once = lambda factor: depth_attention([factor * x], torch.zeros(1024))  # noqa: E731
    first = once(1.0)
    address, view = first.data_ptr(), first[3]
    del first
    assert once(2.0).data_ptr() != address and view.eq(1).all(), "a view keeps it alive"
    del view
    assert once(3.0).data_ptr() == address
    kept: list[torch.Tensor] = []
    threads = [threading.Thread(target=lambda: kept.extend(once(float(k)) for k in range(8))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({h.data_ptr() for h in kept}) == 24
    assert sorted(h.mean().item() for h in kept) == sorted([float(k) for k in range(8)] * 3)
    assert once(5.0).resize_(2048, 1024)[:1024].eq(5).all()


def test_a_decode_step_runs_on_the_buffers_of_the_step_before(monkeypatch):
    """Also when the rest of the program has meanwhile taken whatever memory of their sizes was free."""
    connection = make_connection("block", dim=DIM, sites=9, block_size=4)
    token, used, taken = torch.ones(1, 1, DIM), [], []

    def noting(kernel):
        def call(*arguments):
            results = kernel(*arguments)
            used.extend((x.data_ptr(), x.shape) for x in tree_leaves(results))
            return results

        return call

    def step():
        used.clear()
        connection.readout(connection.run(connection.start(token), [torch.sin] * 9))
        taken.extend(torch.empty(shape) for _, shape in used for _ in range(20))
        return list(used)

    for name in ("attend_one", "add_and_attend_one"):
        monkeypatch.setattr(library, name, noting(getattr(library, name)))
    with torch.inference_mode():
        first, second = step(), step()
    assert len(first) == 9 + 1 + 6  # h alone, at each site, and the sums of two open blocks
    assert sorted(second) == sorted(first)


def test_the_memory_kept_is_bounded():
    """At most 256 MB stay with the kernel when everything is freed."""
    code = (
        "import torch; from attnres.ops import depth_attention\n"
        "resident = lambda: int(open('/proc/self/statm').read().split()[1]) * 4096 / 2**20\n"
        "once = lambda rows: depth_attention([torch.ones(rows, 1024)], torch.zeros(1024))\n"
        "once(8); before = resident()\n"
        "kept = [once(2**12 + k) for k in range(32)]\n"
        "held = resident(); del kept\n"
        "print(held - before, resident() - before)\n"
    )
    if not sys.platform.startswith("linux"):
        pytest.skip("reads /proc")
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    held, left = map(float, run.stdout.split())
    assert held > 500 and 200 < left < 300, run.stdout


def test_inputs_are_not_changed():
    tensors = inputs_of()
    before = [x.clone() for x in tensors]
    leaves = [x.requires_grad_() for x in tensors]
    (one_phase(*leaves) + two_phases(*leaves)).sum().backward()
    assert all(torch.equal(a, b) for a, b in zip(leaves, before, strict=True))


def test_the_thread_pool_is_torch_s():
    """The kernel may not bring a second OpenMP pool: it would spin against torch's."""
    code = (
        "import re, torch; from attnres.ops import depth_attention\n"
        "x = torch.randn(4096, 64); x @ x.T\n"
        "depth_attention([x, x], torch.zeros(64), backend='cpu')\n"
        "maps = open('/proc/self/maps').read()\n"
        "print(torch.get_num_threads(), len(set(re.findall(r'\\S*lib[gi]?omp\\S*', maps))))\n"
        "print(sum('Threads' in line and int(line.split()[1]) for line in open('/proc/self/status')))\n"
    )
    if not sys.platform.startswith("linux"):
        pytest.skip("reads /proc")
    run = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "OMP_NUM_THREADS": "2"}, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    counted, pools, running = run.stdout.split()
    assert counted == "2" and pools == "1" and int(running) <= 3, run.stdout
