"""The Triton backend: under its interpreter, compiled for a GPU that need not be there, and on one that is."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")
from attnres.ops import triton_backend
from tests.ops.launches import Call, Launch, Stack, launches_of

here = Path(__file__).parent
F32, BF16 = torch.float32, torch.bfloat16
PARAMETER_BYTES = 4096
"""What a launch may pass on every GPU and driver."""


def test_the_kernels_in_the_interpreter():
    if version("triton") < "3.7" and version("numpy") >= "2.4":
        pytest.skip("Triton 3.6's interpreter needs numpy before 2.4")
    ignored = "ignore:Conversion of an array:DeprecationWarning"  # Triton 3.6's own
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-W", ignored, here / "interpreted.py"],
        env={**os.environ, "TRITON_INTERPRET": "1", "PYTEST_ADDOPTS": ""},
        cwd=here.parents[1],
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]


COMPILED = [  # a site's sum and merge, phase 1 of a block, one query, and sources of two dtypes
    (Call(1024, 1, 1, merges=True, adds=True, normed=True), "sm_90"),
    pytest.param(Call(7168, normed=True), "sm_80", marks=pytest.mark.slow),
    pytest.param(Call(7168, 1, 1, merges=True, adds=True, normed=True), "sm_100", marks=pytest.mark.slow),
    pytest.param(Call(33, 1, 2, merges=True, dtypes=(F32, BF16)), "sm_80", marks=pytest.mark.slow),
    # Of a single source: Triton 3.6 once failed on lists of one tensor.
    pytest.param(Call(7168, 8, 1), "sm_100", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("call", "target"), COMPILED, ids=str)
def test_no_register_is_spilled(call, target):
    """A spill costs bandwidth that the kernels do not have to give."""
    for launch in both_ways(call):
        assert launch.spilled_bytes(target) == 0, launch.build


def test_what_a_stack_moves(kernel):
    """Tensors of the stream per sublayer, and launches per decoded token: docs/dev/kernels.md has the table."""
    for normed, most in ((False, 11.2), (True, 11.4)):
        forward, backward = Stack(normed=normed).moved()
        assert 0 < forward < 8.7 and 0 < backward < most
        sublayers = 48
        assert sublayers < Stack(sublayers=sublayers, normed=normed).launched() < 1.05 * sublayers


@pytest.mark.parametrize(
    ("sources", "queries"), [((1,), 3), ((2, 9, 16), 1), ((17, 32, 40), 3)], ids=["one", "arguments", "table"]
)
def test_one_build_for_any_number_of_sources_and_tokens(sources, queries):
    """None is compiled in training that decoding has not met, or for a last batch that is shorter."""
    calls = [Call(64, queries, n, tokens=tokens) for n in sources for tokens in (1, 7, 16)]
    for directions in zip(*map(launches_of, calls), strict=True):
        builds = {launch.build for launches in directions for launch in launches}
        names = {launch.name for launches in directions for launch in launches}
        assert len(builds) == len(names), builds


def test_few_launches_of_few_parameters():
    """Above 16 sources, or of several dtypes, those of a table for each list besides."""
    counts = {
        Call(64, merges=True, sources=1, adds=True): (1, 2),
        Call(64): (1, 2),
        Call(7168, 24): (2, 4),
        Call(64, 32, sources=2, merges=True): (2, 4),
        Call(64, sources=17): (3, 6),
    }
    assert {call: tuple(map(len, launches_of(call))) for call in counts} == counts
    for call in counts:
        for launch in both_ways(call):
            assert 8 * (numbers(launch) + 2) <= PARAMETER_BYTES, "with two for scratch memory"


def numbers(launch: Launch) -> int:
    """How many the launch passes, of at most 8 bytes each, with those that a build has as constants."""
    given = launch.arguments.values()
    return sum(len(x) if isinstance(x, tuple) else 1 for x in given)


def test_the_number_of_warps_follows_from_shapes():
    assert [triton_backend.warps(4, d) for d in (1, 512, 1024, 2048, 4096, 7168, 2**20)] == [1, 1, 1, 2, 4, 8, 16]
    for queries in (1, 8):
        taken = {
            tuple(launch.options.num_warps for launch in both_ways(Call(1024, queries, n, tokens=tokens)))
            for n, tokens in ((9, 1), (9, 4000), (2, 5))
        }
        assert len(taken) == 1, "neither a decode step nor a rank's share of the batch chooses another"


def both_ways(call: Call) -> list[Launch]:
    forward, backward = launches_of(call)
    return [*forward, *backward]
