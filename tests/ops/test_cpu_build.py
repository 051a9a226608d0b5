"""Building the CPU kernel: once, by several processes, and kindly where it cannot be."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from attnres.ops import cpu

USE = (
    "import torch, logging; from attnres.ops import depth_attention, operators\n"
    "logging.basicConfig(level=logging.INFO, format='%(levelname)s %(message)s')\n"
    "x = torch.ones(3, 4)\n"
    "for _ in range(3): assert torch.equal(depth_attention([x, x], torch.zeros(4)), x)\n"
    "print(operators.native_backend('cpu'))\n"
)

# A stand-in for the compiler: it notes each call, waits, and puts the real kernel where it is asked for.
SLOW_COMPILER = """#!/bin/sh
echo called >> "$CALLS"
sleep 1
while [ $# -gt 1 ]; do [ "$1" = -o ] && out=$2; shift; done
cp "$KERNEL" "$out"
"""


def start(cwd: Path | None = None, **environment: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", USE],
        cwd=cwd,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_processes_that_start_at_once_build_once(tmp_path):
    compiler, calls = tmp_path / "c++", tmp_path / "calls"
    compiler.write_text(SLOW_COMPILER)
    compiler.chmod(compiler.stat().st_mode | stat.S_IEXEC)
    environment = {"CXX": str(compiler), "CALLS": str(calls), "KERNEL": str(cpu.build())}
    processes = [start(XDG_CACHE_HOME=str(tmp_path), **environment) for _ in range(2)]
    ends = [process.communicate() for process in processes]
    assert [out.strip() for out, _ in ends] == ["cpu", "cpu"], ends
    assert len(calls.read_text().splitlines()) == 2, "compiled and linked once"
    assert sorted(path.suffix for path in (tmp_path / "attnres").iterdir()) == [".lock", ".so"]
    assert sum("building the CPU kernel" in err for _, err in ends) == 1
    for _, err in ends:
        assert err.count("depth attention on cpu: cpu backend") == 1


@pytest.mark.parametrize(
    ("environment", "reason"),
    [
        ({"CXX": "no-such-compiler"}, "there is no C++ compiler 'no-such-compiler'; install g++ or set CXX"),
        ({"CXX": "false"}, "false failed"),
    ],
)
def test_without_a_compiler_one_line_and_the_reference(tmp_path, environment, reason):
    out, err = start(XDG_CACHE_HOME=str(tmp_path), **environment).communicate()
    assert out.strip() == "reference"
    warnings = [line for line in err.splitlines() if line.startswith("WARNING no CPU kernel")]
    assert len(warnings) == 1 and reason in warnings[0], err
    assert "Traceback" not in err


def test_a_cache_folder_that_cannot_be_written(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    out, err = start(XDG_CACHE_HOME=str(blocked)).communicate()
    assert out.strip() == "reference" and "no CPU kernel" in err and "Traceback" not in err


def test_another_source_is_another_file(monkeypatch, tmp_path):
    before = cpu.library_name()
    folder = shutil.copytree(cpu.SOURCE.parent, tmp_path / "csrc")
    monkeypatch.setattr(cpu, "SOURCE", folder / "attend.cpp")
    assert cpu.library_name() == before
    for changed in folder.iterdir():
        text = changed.read_text()
        changed.write_text(text + "\n")
        assert cpu.library_name() != before
        changed.write_text(text)


def test_built_at_install_time(tmp_path):
    """Then nothing is compiled on first use, nor anything written."""
    stand_in, calls, installed = tmp_path / "c++", tmp_path / "calls", tmp_path / "installed"
    stand_in.write_text(SLOW_COMPILER.replace("sleep 1\n", ""))
    stand_in.chmod(0o755)
    environment = {**os.environ, "CXX": str(stand_in), "CALLS": str(calls), "KERNEL": str(cpu.build())}
    command = [sys.executable, "setup.py", "-q", "build_py", "--build-lib", installed]
    root = Path(__file__).parents[2]
    asked = {"ATTNRES_BUILD_KERNEL": "1"}
    run = subprocess.run(command, cwd=root, env=environment | asked, capture_output=True, text=True, timeout=100)
    assert run.returncode == 0, run.stderr
    assert len(calls.read_text().splitlines()) == 2, "compiled and linked"
    stand_in.unlink()
    cache = tmp_path / "cache"
    use = start(tmp_path, CXX=str(stand_in), XDG_CACHE_HOME=str(cache), PYTHONPATH=str(installed))
    out, err = use.communicate(timeout=100)
    assert out.strip() == "cpu" and "WARNING" not in err, err
    assert not cache.exists()
