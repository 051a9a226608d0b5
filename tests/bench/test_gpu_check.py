"""`attnres bench gpu --check` without a GPU: under Triton's interpreter, and that it finds what is wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")
from attnres.bench import gpu, gpu_calls, gpu_check, measure
from attnres.bench.measure import Row
from attnres.cli import main

COMMAND = """
import sys
import tests.ops.cases  # mends the interpreter's product of bfloat16
from attnres.cli import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="this starts the interpreter itself")
@pytest.mark.timeout(900)
def test_the_command_runs_through_in_the_interpreter(tmp_path):
    """Every path of the kernels, then every row of the table; torch.compile would take minutes for what others test."""
    out = tmp_path / "gpu.json"
    environment = {**os.environ, "TRITON_INTERPRET": "1", "TORCH_COMPILE_DISABLE": "1", "OMP_NUM_THREADS": "1"}
    run = subprocess.run(
        [
            sys.executable,
            "-c",
            COMMAND,
            "bench",
            "gpu",
            "--check",
            "--threads",
            "1",
            "--rounds",
            "1",
            "--out",
            str(out),
        ],
        env=environment,
        cwd=Path(__file__).parent.parent.parent,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]
    rows = json.loads(out.read_text())["rows"]
    checks = [row for row in rows if "worst error" in row["what"]]
    assert len(checks) == 10 and all(0 <= row["ratio"] <= 1 for row in checks)
    measured = {row["what"].partition(", ")[0] for row in rows[len(checks) :]}
    assert measured == {goal.what.partition(", ")[0] for goal in gpu.GOALS}
    assert all(isinstance(row["ratio"], float) == ("peak memory" not in row["what"]) for row in rows)


def test_without_a_gpu_it_says_what_to_do(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(gpu, "device_here", lambda: None)
    assert main(["bench", "gpu", "--check", "--out", str(tmp_path / "gpu.json")]) == 2
    error = capsys.readouterr().err
    assert "CUDA" in error and "TRITON_INTERPRET" in error and error.count("\n") == 1
    assert main(["bench", "step", "--check"]) == 2
    assert "attnres bench gpu --check" in capsys.readouterr().err


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


@pytest.mark.parametrize(("ratio", "right"), [(1.0, True), (1.01, False), (None, False), (float("nan"), False)])
def test_what_passes(ratio, right):
    assert gpu_check.passed([Row("", "", "1", "-", 0.1), Row("", "", "1", "-", ratio)]) == right


def test_a_wrong_gradient_and_a_wrong_repetition_are_found(monkeypatch):
    call = gpu_calls.Call(16, sources=3, tokens=4)
    exact = call.function("reference")
    monkeypatch.setattr(gpu_calls.Call, "function", lambda *_: exact)
    assert call.error(torch.device("cpu")) < 1 and call.repeats(torch.device("cpu")) == 0

    def off(*x):
        return [0.98 * out if out.ndim > 1 else out for out in exact(*x)]

    inputs = call.inputs(torch.device("cpu"))
    assert gpu_calls.error_of(off, exact, inputs, gpu_calls.TOLERANCE) > 1
    monkeypatch.setattr(gpu_calls.Call, "function", lambda *_: lambda *x: [out + torch.rand(()) for out in exact(*x)])
    assert call.repeats(torch.device("cpu")) == float("inf")


def test_a_case_that_raises_fails_its_path_alone(monkeypatch):
    cases = {"one query": {"a": lambda: 0.25, "b": lambda: 0.5}, "merges": {"a": lambda: 0.25, "b": lambda: 1 / 0}}
    monkeypatch.setattr(gpu_check, "paths", lambda *_: cases)
    one, merges = gpu_check.check_on(torch.device("cpu"), gpu_check.TINY, measure.Setting())
    assert one.ratio == 0.5 and merges.ratio is None and str(merges.details["b"]).startswith("ZeroDivisionError")


def test_a_number_that_is_none_does_not_pass_among_others(monkeypatch):
    monkeypatch.setattr(gpu_check, "paths", lambda *_: {"one query": {"a": lambda: 0.5, "b": lambda: float("nan")}})
    assert not gpu_check.passed(gpu_check.check_on(torch.device("cpu"), gpu_check.TINY, measure.Setting()))


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
