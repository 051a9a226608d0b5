"""The memory that the CPU kernel keeps: found again, never shared, bounded, given back, and whole after a fork."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest
import torch
from torch.utils._pytree import tree_leaves

from attnres.connections import make_connection
from attnres.ops import depth_attention, library, trim


def read(length: int, dim: int = 64) -> torch.Tensor:
    x = torch.ones(length, dim)
    return depth_attention([x, x], torch.zeros(dim))


@pytest.fixture(autouse=True)
def nothing_kept(kernel):
    trim()


def test_trim_gives_back_what_is_kept():
    h = read(1024)
    while_in_use = trim()
    assert while_in_use < h.nbytes, "h is alive"
    size = h.nbytes
    del h
    assert size <= trim() <= 1.125 * size
    assert trim() == 0


def test_results_reuse_memory_and_never_share_it():
    """A freed result's memory serves the next of its size; what is alive, in whichever thread, keeps its own."""
    x = torch.ones(256, 1024)
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
    assert once(5.0).resize_(512, 1024)[:256].eq(5).all()


def test_a_decode_step_runs_on_the_buffers_of_the_step_before(monkeypatch):
    """Also when the rest of the program has meanwhile taken whatever memory of their sizes was free."""
    connection = make_connection("block", dim=40, sublayers=9, block_size=4)
    token, used, taken = torch.ones(1, 1, 40), [], []

    def noting(operator):
        def call(*arguments):
            results = operator(*arguments)
            used.extend((x.data_ptr(), x.shape) for x in tree_leaves(results))
            return results

        return call

    def step():
        used.clear()
        connection.readout(connection.run(connection.start(token), [torch.sin] * 9))
        taken.extend(torch.empty(shape) for _, shape in used for _ in range(20))
        return list(used)

    monkeypatch.setattr(library, "attend_one", noting(torch.ops.attnres.attend_one))
    with torch.inference_mode():
        first, second = step(), step()
    assert len(first) == 9 + 1 + 6  # h alone, at each site, and the sums of two open blocks
    assert {x for x, _ in second} <= {x for x, _ in first}


A_PROCESS = r"""
import os, re, resource, signal, threading, torch
from attnres.ops import depth_attention, trim
def say(what):
    print(what, flush=True)

# Two threads are torch's own: a second OpenMP pool would spin against it.
torch.set_num_threads(2)
x = torch.randn(4096, 64)
x @ x.T
before = len(os.listdir("/proc/self/task"))
depth_attention([x, x], torch.zeros(64), backend="cpu")
assert len(os.listdir("/proc/self/task")) == before, "the kernel has threads of its own"
assert len(set(re.findall(r"\S*lib[gi]?omp\S*", open("/proc/self/maps").read()))) == 1, "another OpenMP"
say("one pool of threads")
torch.set_num_threads(1)

# A fork while another thread is inside the pool. It is there for as long as the system takes to take 240 MB back.
x, small, q = torch.ones(10_000, 1024), torch.ones(3, 1024), torch.zeros(1024)
for _ in range(2):
    alive = [depth_attention([x], q) for _ in range(6)]
    del alive
    about_to = threading.Event()
    trimming = threading.Thread(target=lambda: (about_to.set(), trim()))
    trimming.start()
    about_to.wait()
    child = os.fork()
    if child == 0:
        signal.alarm(100)  # it would wait forever
        os._exit(0 if torch.equal(depth_attention([small], q), small) else 1)
    assert os.waitpid(child, 0)[1] == 0
    trimming.join()
say("a child of a fork can use it")

# No memory: what is kept makes room, and where that is too little the error is torch's own.
larger, largest = torch.ones(20_000, 1024), torch.ones(40_000, 1024)
def limit(more):
    size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + more, resource.RLIM_INFINITY))
kept = depth_attention([x], q)
del kept
limit(3 * larger.nbytes // 4)
assert torch.equal(depth_attention([larger], q), larger)
limit(largest.nbytes // 4)
try:
    depth_attention([largest], q)
except RuntimeError as error:
    assert "can't allocate memory" in str(error), error
else:
    raise AssertionError("there was memory")
assert torch.equal(depth_attention([small], q), small)
say("an allocation that fails is an error and not the end")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc and sets Linux' limits")
def test_in_a_process_of_its_own():
    """One process for what would harm this one: threads, forks and limits of memory."""
    command = [sys.executable, "-W", "ignore", "-c", A_PROCESS]
    run = subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "2"}, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    assert len(run.stdout.splitlines()) == 3
