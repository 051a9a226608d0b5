"""`attnres bench gpu` without a GPU: every row, on the CPU's kernel; tests/gpu has what is right on one."""

from __future__ import annotations

import gc
import json
import weakref
from contextlib import contextmanager, nullcontext

import pytest
import torch

from attnres.bench import gpu, graphs
from attnres.bench.measure import Row, Setting
from attnres.cli import main

CPU = torch.device("cpu")
SETTING = Setting(rounds=1, quick=True)


def test_every_row(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    rows = list(gpu.measure(SETTING))
    assert len(rows) == len(gpu.GOALS) and {row.measured for row in rows} == {"not measured"}
    measured = list(gpu.measure_on(CPU, gpu.QUICK, SETTING))
    assert {row.what.partition(", ")[0] for row in measured} == {row.what.partition(", ")[0] for row in rows}
    for row in measured:
        assert (row.ratio is None) == ("peak memory" in row.what), "a CPU does not count what a step allocates"
        assert row.where == "cpu"
    shares = [row for row in measured if "share of the copy bandwidth" in row.what]
    assert [row.ratio for row in shares] == pytest.approx([row.details["GB/s"] / 10 for row in shares])


def test_peers_take_part_with_and_without_their_stack():
    row = gpu._operator_row(gpu._operator_shape(CPU, 32, gpu.QUICK), "cpu", SETTING)
    timed = {name.removesuffix(", ms") for name in row.details if name.endswith(", ms")}
    assert timed >= {"attnres", "compiled reference", "stacked", "stacked, its stack given"}
    for name in ("fla-core, checkpoint level 0", "flash-attn-res", "liger-kernel"):
        assert "not measured" in str(row.details[name]), "what cannot run here says why"


def test_what_was_measured_before_a_stop_is_kept(monkeypatch, tmp_path, capsys):
    def measured(setting):
        yield Row("decode", "gpu", "1", "-", 0.5)
        raise KeyboardInterrupt

    monkeypatch.setattr(gpu, "measure", measured)
    out = tmp_path / "gpu.json"
    assert main(["bench", "gpu", "--out", str(out)]) == 130
    assert [row["what"] for row in json.loads(out.read_text())["rows"]] == ["decode"]
    assert "decode" in capsys.readouterr().out


class FakeGPU:
    """torch.cuda as far as graphs and memory go: what is captured runs at once, and each run takes 64 bytes at most."""

    def __init__(self, monkeypatch):
        self.captured = 0
        for name, value in {
            "graph_pool_handle": lambda: "pool",
            "Stream": lambda: self,
            "current_stream": lambda: self,
            "stream": lambda _: nullcontext(),
            "CUDAGraph": lambda: self,
            "graph": self.graph,
            "synchronize": lambda *_: None,
            "reset_peak_memory_stats": lambda *_: None,
            "memory_allocated": lambda *_: 1000,
            "max_memory_allocated": lambda *_: 1064,
        }.items():
            monkeypatch.setattr(torch.cuda, name, value)

    def wait_stream(self, _):
        pass

    @contextmanager
    def graph(self, graph, pool):
        self.captured += 1
        yield

    def replay(self):
        pass


def test_a_step_is_captured_and_its_memory_counted(monkeypatch):
    fake, runs = FakeGPU(monkeypatch), []
    cuda = torch.device("cuda")
    replay = graphs.captured(lambda: runs.append(1), cuda, graphs.new_pool(cuda))
    assert len(runs) == graphs.WARM_UP + 1 and fake.captured == 1
    replay()
    assert len(runs) == graphs.WARM_UP + 1, "a replay launches what was captured and runs no Python"
    assert graphs.peak_bytes(lambda: None, cuda) == 64 and graphs.peak_bytes(lambda: None, CPU) is None
    assert graphs.captured(replay, CPU) is replay and graphs.new_pool(CPU) is None


def test_a_captured_step_keeps_the_tensors_that_its_graph_reads(monkeypatch):
    FakeGPU(monkeypatch)
    tokens = torch.zeros(3)
    kept = weakref.ref(tokens)
    replay = graphs.captured(lambda tokens=tokens: tokens.add_(1), torch.device("cuda"))
    del tokens
    gc.collect()
    assert kept() is not None
    replay()
