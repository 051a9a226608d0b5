"""`attnres bench gpu` and its `--check` without a GPU: every row and every path, on the CPU's kernel."""

from __future__ import annotations

import gc
import json
import weakref
from contextlib import contextmanager, nullcontext

import pytest
import torch

from attnres.bench import gpu, gpu_calls, gpu_check, graphs, measure
from attnres.bench.measure import Row, Setting
from attnres.cli import main
from attnres.ops import operators
from attnres.ops.backends import is_fused

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
    for name in ("fla-core, Gluon", "flash-attn-res", "liger-kernel"):
        assert "not measured" in str(row.details[name]), "what cannot run here says why"


def test_the_check_passes_what_is_right(monkeypatch, kernel):
    """Every path, by this machine's kernel; tests/ops has the GPU's themselves under Triton's interpreter."""
    monkeypatch.setattr(gpu, "device_here", lambda: CPU)
    monkeypatch.setattr(gpu_check, "native_backend", lambda _: "triton")
    monkeypatch.setattr(operators, "is_fused", lambda name, *of: is_fused(name.replace("triton", "auto"), *of))
    rows = gpu_check.measure(SETTING)
    assert len(rows) == 10 and gpu_check.passed(rows), [row for row in rows if not gpu_check.passed([row])]


def test_a_wrong_gradient_and_a_wrong_repetition_are_found(monkeypatch):
    call = gpu_calls.Call(16, sources=3, tokens=4)
    exact = call.function("reference")
    monkeypatch.setattr(gpu_calls.Call, "function", lambda *_: exact)
    assert call.error(CPU) < 1 and call.repeats(CPU) == 0

    def off(*x):
        return [0.98 * out if out.ndim > 1 else out for out in exact(*x)]

    assert gpu_calls.error_of(off, exact, call.inputs(CPU), gpu_calls.TOLERANCE) > 1
    monkeypatch.setattr(gpu_calls.Call, "function", lambda *_: lambda *x: [out + torch.rand(()) for out in exact(*x)])
    assert call.repeats(CPU) == float("inf")


def test_a_case_that_raises_or_is_nan_fails_its_path_alone(monkeypatch):
    cases = {
        "one query": {"a": lambda: 0.25, "b": lambda: 0.5},
        "merges": {"a": lambda: 0.25, "b": lambda: 1 / 0},
        "sums": {"a": lambda: 0.25, "b": lambda: float("nan")},
    }
    monkeypatch.setattr(gpu_check, "paths", lambda *_: cases)
    one, merges, sums = gpu_check.check_on(CPU, gpu_check.TINY, SETTING)
    assert one.ratio == 0.5 and merges.ratio is None and str(merges.details["b"]).startswith("ZeroDivisionError")
    assert [gpu_check.passed([row]) for row in (one, merges, sums)] == [True, False, False]
    assert not gpu_check.passed([Row("", "", "1", "-", 1.01)])


@pytest.mark.parametrize(("dtype", "off"), [(torch.float32, 1e-3), (torch.float16, 5e-3), (torch.bfloat16, 2e-2)])
def test_what_is_off_by_several_roundings_is_wrong(dtype, off):
    exact = torch.randn(1000)
    assert gpu_calls.worst([exact.to(dtype)], [exact], gpu_calls.TOLERANCE) < 1
    assert gpu_calls.worst([((1 + off) * exact).to(dtype)], [exact], gpu_calls.TOLERANCE) > 1


def test_small_gradients_count_and_noise_where_there_is_none_does_not():
    large, noise = torch.randn(1000), torch.randn(1000)
    small = 5e-3 * large
    assert gpu_calls.worst([large, -small], [large, small], {torch.float32: 1e-2}) > 1
    assert gpu_calls.worst([large, 1e-6 * noise], [large, 0 * noise], {torch.float32: 1e-2}) < 1


def test_without_a_gpu_it_says_what_to_do(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(gpu, "device_here", lambda: None)
    assert main(["bench", "gpu", "--check", "--out", str(tmp_path / "gpu.json")]) == 2
    error = capsys.readouterr().err
    assert "CUDA" in error and "TRITON_INTERPRET" in error


def test_what_is_wrong_is_recorded_and_nothing_is_measured(monkeypatch, tmp_path, capsys):
    wrong = [Row("one query", "gpu", "1", "-", 0.5), Row("merges", "gpu", "1", "-", None, {"d 64": "RuntimeError: no"})]
    monkeypatch.setattr(gpu_check, "measure", lambda _: wrong)
    monkeypatch.setattr(gpu, "measure", lambda _: pytest.fail("a speed of what is wrong"))
    out = tmp_path / "gpu.json"
    assert main(["bench", "gpu", "--check", "--out", str(out)]) == 1
    assert [row["ratio"] for row in json.loads(out.read_text())["rows"]] == [0.5, measure.NOT_MEASURED]
    assert "RuntimeError: no" in capsys.readouterr().out


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


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_every_row_of_a_gpu():
    assert all(row.ratio is not None for row in gpu.measure(SETTING))
