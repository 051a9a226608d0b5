"""The memory that the CPU kernel keeps: found again, bounded, given back, and whole after a fork or a failure."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from attnres.ops import depth_attention, trim
from attnres.ops.backends import native_backend
from tests.ops.cases import FUSED

pytestmark = pytest.mark.skipif(FUSED == "triton", reason="of the CPU kernel")
KEPT = 2**28


def read(length: int, dim: int = 64) -> torch.Tensor:
    x = torch.ones(length, dim)
    return depth_attention([x, x], torch.zeros(dim))


@pytest.fixture(autouse=True)
def nothing_kept():
    assert native_backend("cpu") == "cpu"
    trim()


def test_trim_gives_back_what_is_kept():
    h = read(1024)
    while_in_use = trim()
    assert while_in_use < h.nbytes, "h is alive"
    size = h.nbytes
    del h
    assert size <= trim() <= 1.125 * size
    assert trim() == 0


def test_trim_without_a_kernel():
    code = "from attnres.ops import trim; print(trim())"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "0"


def test_batches_of_about_the_same_length_use_the_same_memory():
    """An eighth of an octave is one size: what a batch of 900 leaves serves one of 960."""
    h = read(900)
    place = h.data_ptr()
    del h
    assert read(960).data_ptr() == place


def test_what_is_kept_stays_bounded_over_many_lengths():
    for length in range(1, 40_000, 611):
        read(length, 257)
    assert 0 < trim() <= KEPT


def test_many_small_lengths_are_bounded_in_number():
    alive = [read(1, 4) for _ in range(1500)]
    del alive
    assert 0 < trim() <= 1024 * 64 * 3


IN_A_FORK = """
import os, signal, threading, time, torch
from attnres.ops import depth_attention, trim
torch.set_num_threads(1)
x, small, q = torch.ones(10_000, 1024), torch.ones(3, 1024), torch.zeros(1024)
for _ in range(5):
    alive = [depth_attention([x], q) for _ in range(6)]  # of 40 MB each, which take the system a while to take back
    del alive
    trimming = threading.Thread(target=trim)
    trimming.start()
    time.sleep(0.001)
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        os._exit(0 if torch.equal(depth_attention([small], q), small) else 1)
    assert os.waitpid(child, 0)[1] == 0
    trimming.join()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_of_a_fork_can_use_it():
    """Also where another thread of the parent was inside the pool at that moment, as one that trims it is here."""
    run = subprocess.run([sys.executable, "-W", "ignore", "-c", IN_A_FORK], capture_output=True, text=True, timeout=250)
    assert run.returncode == 0, run.stderr


WITHOUT_MEMORY = """
import resource, torch
from attnres.ops import depth_attention, trim
torch.set_num_threads(1)
x, q = torch.ones(2**16, 1024), torch.zeros(1024)
small = torch.ones(3, 1024)
assert torch.equal(depth_attention([small], q), small)
kept = depth_attention([x[:1]], q)
size = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + 2**27, resource.RLIM_INFINITY))
try:
    depth_attention([x, x], q)
except RuntimeError as error:
    print(str(error).splitlines()[0])
assert torch.equal(depth_attention([small], q), small)
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
assert torch.equal(depth_attention([x], q), x)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="of Linux' limits")
def test_an_allocation_that_fails_is_an_error_and_not_the_end():
    run = subprocess.run([sys.executable, "-c", WITHOUT_MEMORY], capture_output=True, text=True, timeout=200)
    assert run.returncode == 0, run.stderr
    assert "can't allocate memory" in run.stdout
