"""The Triton backend: under its interpreter, compiled for a GPU that need not be there, and on one that is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from attnres.ops import attend_blocks, depth_attention, merge_partial
from attnres.ops.backends import native_backend
from tests.ops.cases import FUSED, assert_near, in_double, make_sources, make_vector, plain, value_and_gradients

pytest.importorskip("triton")
from attnres.bench import kernels
from attnres.ops import triton_backend

here = Path(__file__).parent


@pytest.mark.skipif(FUSED == "triton", reason="this is the run under the interpreter")
def test_every_operator_test_passes_in_the_interpreter():
    files = [here / f"test_{name}.py" for name in ("operators", "attend_and_merge", "normalised", "touched")]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-k", "triton", "-p", "no:cacheprovider", *files],
        env={**os.environ, "TRITON_INTERPRET": "1", "PYTEST_ADDOPTS": ""},
        cwd=here.parent.parent,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout[-3000:]


compiles = pytest.mark.skipif(FUSED == "triton", reason="the interpreter compiles nothing")


@compiles
@pytest.mark.parametrize(
    ("channels", "queries", "merges", "adds", "target"),
    [
        (1024, 8, False, False, "sm_90"),
        (4096, 1, False, False, "sm_80"),
        (1024, 1, True, True, "sm_90"),
        (7186, 1, True, True, "sm_90"),
        (7168, 24, False, False, "sm_100"),
    ],
)
def test_no_register_is_spilled(channels, queries, merges, adds, target):
    for launch in both_ways(kernels.Call(channels, queries, 1 if merges else 9, merges, adds=adds)):
        assert kernels.resources(launch, target).spilled_bytes == 0, launch.build


@compiles
@pytest.mark.parametrize("dtypes", [(torch.float16,), (torch.float32, torch.bfloat16)], ids=["float16", "mixed"])
def test_every_form_compiles_for_an_h100(dtypes):
    for launch in both_ways(kernels.Call(33, 1, 2, merges=True, dtypes=dtypes)):
        assert kernels.resources(launch, "sm_90").spilled_bytes == 0, launch.build


@compiles
@pytest.mark.parametrize(("queries", "merges"), [(8, False), (3, True), (33, False)])
def test_lists_of_one_tensor_compile(queries, merges):
    """Triton 3.6 once failed on them: of one source, and of the one query that is left of 33."""
    for launch in both_ways(kernels.Call(64, queries, 1, merges)):
        kernels.resources(launch, "sm_90")


@compiles
@pytest.mark.parametrize("sources", [(1,), (2, 9, 16), (17, 32, 40)], ids=["one", "arguments", "table"])
@pytest.mark.parametrize("queries", [1, 3])
def test_one_build_for_any_number_of_sources_and_tokens(sources, queries):
    calls = [kernels.Call(64, queries, n, tokens=tokens) for n in sources for tokens in (1, 7, 16, 48)]
    for directions in zip(*map(kernels.launches_of, calls), strict=True):
        builds = {launch.build for launches in directions for launch in launches}
        names = {launch.name for launches in directions for launch in launches}
        assert len(builds) == len(names), builds


@compiles
def test_few_launches():
    """Above 16 sources, or of several dtypes, those of a table for each list besides."""
    counts = {
        kernels.Call(64, merges=True, sources=1): (1, 2),
        kernels.Call(64, merges=True, sources=1, adds=True): (1, 2),
        kernels.Call(64): (1, 2),
        kernels.Call(4096, 8): (2, 4),
        kernels.Call(7168, 24): (2, 4),
        kernels.Call(64, sources=17): (3, 6),
    }
    assert {call: tuple(map(len, kernels.launches_of(call))) for call in counts} == counts


@compiles
def test_the_number_of_warps_follows_from_shapes():
    assert [triton_backend.warps(4, d) for d in (1, 512, 1024, 2048, 4096, 7168, 2**20)] == [1, 1, 1, 2, 4, 8, 16]
    for queries in (1, 8):
        taken = {
            tuple(launch.options.num_warps for launch in both_ways(kernels.Call(1024, queries, n, tokens=tokens)))
            for n, tokens in ((9, 1), (9, 4000), (2, 5))
        }
        assert len(taken) == 1, "neither a decode step nor a rank's share of the batch chooses another"


def both_ways(call) -> list:
    forward, backward = kernels.launches_of(call)
    return [*forward, *backward]


def on_a_gpu(test):
    return pytest.mark.gpu(pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")(test))


def on_gpu(*tensors: torch.Tensor) -> list[torch.Tensor]:
    return [x.cuda() for x in tensors]


@on_a_gpu
@pytest.mark.parametrize("dim", [64, 513, 1024, 4096, 7186])
@pytest.mark.parametrize("dtypes", [(torch.bfloat16,), (torch.float32, torch.bfloat16), (torch.float16,)], ids=str)
def test_on_a_gpu(dim, dtypes):
    inputs = on_gpu(*make_sources(9, 3, 37, dim, dtypes=dtypes), make_vector(dim), make_vector(dim, centre=1.0))
    assert native_backend("cuda") == "triton"
    actual = value_and_gradients(lambda *x: depth_attention(x[:9], x[9], x[10], backend="triton"), *inputs)
    repeated = value_and_gradients(lambda *x: depth_attention(x[:9], x[9], x[10], backend="triton"), *inputs)
    assert all(torch.equal(a, b) for a, b in zip(actual, repeated, strict=True))
    assert_near(actual, value_and_gradients(lambda *x: plain(x[:9], x[9], x[10]), *in_double(*inputs)), 2e-3)


@on_a_gpu
def test_two_phases_on_a_gpu():
    inputs = on_gpu(make_vector(1024), *make_sources(5, 300, 1024, dtypes=(torch.bfloat16,)))

    def merged(query, *sources):
        out, lse = attend_blocks(sources[:-1], torch.stack([query] * 8), backend="triton")
        return merge_partial(sources[-1], query, out[5], lse[5], backend="triton")

    expected = value_and_gradients(lambda query, *sources: plain(sources, query), *in_double(*inputs))
    assert_near(value_and_gradients(merged, *inputs), expected, 4e-3)


@on_a_gpu
def test_more_than_2_31_elements():
    tokens = 2**31 // 1024 + 8
    source = torch.zeros(tokens, 1024, device="cuda", dtype=torch.bfloat16)
    source[-1] = 3.0
    h = depth_attention([source, source], torch.zeros(1024, device="cuda"))
    assert torch.equal(h[-1], source[-1]) and not h[:-1].any()


@on_a_gpu
def test_cuda_graph():
    sources, query = on_gpu(*make_sources(12, 1, 512)), make_vector(512).cuda()
    depth_attention(sources, query)
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        h = depth_attention(sources, query)
    for source in sources:
        source.normal_()
    graph.replay()
    torch.testing.assert_close(h, depth_attention(sources, query, backend="reference"), rtol=1e-5, atol=1e-5)
