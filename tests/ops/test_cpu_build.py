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
    "import torch, logging; from attnres.ops import backends, depth_attention\n"
    "logging.basicConfig(level=logging.INFO, format='%(levelname)s %(message)s')\n"
    "x = torch.ones(3, 4)\n"
    "for _ in range(3): assert torch.equal(depth_attention([x, x], torch.zeros(4)), x)\n"
    "print(backends.native_backend('cpu'))\n"
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
        ({"CXX": "env false"}, "env failed"),
        ({"CXX": "g++ 'x"}, "CXX is no command: No closing quotation"),
        ({"ATTNRES_MARCH": "haswell"}, "ATTNRES_MARCH can be native or "),
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


def test_another_source_target_or_compiler_is_another_file(monkeypatch, tmp_path):
    before = cpu.library_name("native")
    assert len({before, cpu.library_name("x86-64-v3"), cpu.library_name("native", "clang++")}) == 3
    folder = shutil.copytree(cpu.SOURCE.parent, tmp_path / "csrc")
    monkeypatch.setattr(cpu, "SOURCE", folder / "attend.cpp")
    assert cpu.library_name("native") == before
    for changed in folder.iterdir():
        text = changed.read_text()
        changed.write_text(text + "\n")
        assert cpu.library_name("native") != before
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
    assert len(calls.read_text().splitlines()) == 2 * len(cpu.TARGETS), "each compiled and linked"
    stand_in.unlink()
    cache = tmp_path / "cache"
    use = start(tmp_path, CXX=str(stand_in), XDG_CACHE_HOME=str(cache), PYTHONPATH=str(installed))
    out, err = use.communicate(timeout=100)
    assert out.strip() == "cpu" and "WARNING" not in err, err
    assert not cache.exists()


@pytest.fixture
def shelf(monkeypatch, tmp_path):
    """An empty cache, and a folder of sources for libraries from install time."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("ATTNRES_MARCH", raising=False)
    monkeypatch.setattr(cpu, "SOURCE", shutil.copytree(cpu.SOURCE.parent, tmp_path / "csrc") / "attend.cpp")
    monkeypatch.setattr(cpu, "compile_to", lambda library, target: library.write_text(target))
    monkeypatch.setattr(cpu, "TARGETS", cpu._X86)
    return cpu.SOURCE.parent


def test_the_best_library_from_install_time_that_the_processor_can_run(shelf, monkeypatch):
    monkeypatch.setattr(cpu, "_features", lambda: "flags : " + " ".join(sorted(cpu._V3)))
    assert cpu.build().read_text() == "native", "none is installed"
    for target in ("x86-64-v2", "x86-64-v3", "x86-64-v4"):
        (shelf / cpu.library_name(target)).write_text(f"installed {target}")
    assert cpu.build().read_text() == "installed x86-64-v3"
    for march, library in {
        "native": "native",
        "x86-64-v2": "installed x86-64-v2",
        "x86-64-v3": "installed x86-64-v3",
    }.items():
        monkeypatch.setenv("ATTNRES_MARCH", march)
        assert cpu.build().read_text() == library
    monkeypatch.setenv("ATTNRES_MARCH", "x86-64-v4")  # which would end in an illegal instruction
    with pytest.raises(cpu.BuildError, match="native or x86-64-v3 or x86-64-v2 on this machine, not 'x86-64-v4'"):
        cpu.build()
    monkeypatch.setattr(cpu, "_features", lambda: "flags : sse2")
    monkeypatch.delenv("ATTNRES_MARCH")
    assert cpu.build().read_text() == "native"


def test_a_target_that_is_not_installed_is_compiled(shelf, monkeypatch):
    monkeypatch.setattr(cpu, "_features", lambda: "flags : " + " ".join(sorted(cpu._V3)))
    monkeypatch.setenv("ATTNRES_MARCH", "x86-64-v2")
    assert cpu.build().read_text() == "x86-64-v2"


def test_apples_clang_gets_flags_that_it_takes(monkeypatch, tmp_path):
    """It rejects -fopenmp, and -march=native on ARM. A dry run: no such machine was to be had."""
    monkeypatch.setattr(cpu, "TARGETS", cpu._ARM)
    monkeypatch.setattr(sys, "platform", "darwin")
    compiling, linking = cpu.commands(tmp_path / "a.so", "native", tmp_path / "a.o")
    assert "-mcpu=native" in compiling and not any(flag.startswith("-march") for flag in compiling)
    assert "-fopenmp" not in compiling + linking
    assert any(flag.startswith("-Wl,-rpath,") for flag in linking)
    assert "-march=armv8-a" in cpu.commands(tmp_path / "a.so", "armv8-a", tmp_path / "a.o")[0]


def test_a_compiler_of_several_words(monkeypatch, tmp_path):
    monkeypatch.setenv("CXX", "ccache 'my g++' -m64")
    for command in cpu.commands(tmp_path / "a.so", "native", tmp_path / "a.o"):
        assert command[:3] == ["ccache", "my g++", "-m64"]


LANES = {"x86-64-v2": "SSE4.2", "x86-64-v3": "AVX2", "x86-64-v4": "AVX-512"}


@pytest.mark.timeout(900)  # of which all but a minute is for a busy machine
@pytest.mark.parametrize("march", [target for target in ("x86-64-v2", "x86-64-v3") if target in cpu.TARGETS])
def test_narrower_vectors_are_right(march):
    """The operators' own tests of awkward sizes and dtypes, forward and backward against float64."""
    here = Path(__file__).parent
    environment = {**os.environ, "ATTNRES_MARCH": march, "PYTEST_ADDOPTS": ""}
    command = [sys.executable, "-c", "from attnres.ops import cpu; print(cpu.instruction_set())"]
    assert subprocess.run(command, env=environment, capture_output=True, text=True).stdout.strip() == LANES[march]
    cases = "cpu and (any_dim or any_mix or attend_blocks or two_phases or one_rounding or bad_values or empty)"
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "-k", cases]
    files = [here / "test_operators.py", here / "test_attend_and_merge.py"]
    run = subprocess.run([*command, *files], env=environment, cwd=here.parent.parent, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout[-3000:]


THREADS = """
import os, re, torch
from attnres.ops import backends, depth_attention
print(backends.native_backend("cpu"))
x, q = torch.randn(4096, 64), torch.zeros(64)
before = len(os.listdir("/proc/self/task"))
depth_attention([x, x], q)
print(len(os.listdir("/proc/self/task")) - before)
print(len(set(re.findall(r"\\S*lib[gi]?omp\\S*", open("/proc/self/maps").read()))))
"""


@pytest.mark.timeout(900)
@pytest.mark.skipif(shutil.which("clang++") is None or sys.platform != "linux", reason="needs clang++ and /proc")
def test_built_by_clang_it_uses_the_threads_that_torch_does(tmp_path):
    """Clang's OpenMP would want a library of its own beside the one that torch has loaded."""
    environment = {**os.environ, "CXX": "clang++", "XDG_CACHE_HOME": str(tmp_path), "OMP_NUM_THREADS": "2"}
    run = subprocess.run([sys.executable, "-c", THREADS], env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    backend, more_threads, pools = run.stdout.split()
    assert (backend, more_threads, pools) == ("cpu", "1", "1"), run.stdout + run.stderr
