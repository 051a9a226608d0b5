"""Building the CPU kernel: once, for this machine, and kindly where it cannot be."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from attnres.ops import backends, cpu

here = Path(__file__).parent

NO_COMPILER = {
    "no compiler": ({"CXX": "no-such-compiler"}, "no-such-compiler"),
    "one that fails": ({"CXX": "false"}, "false failed"),
    "a cache that is a file": ({"XDG_CACHE_HOME": "file"}, "file"),
}


@pytest.mark.parametrize(("environment", "reason"), NO_COMPILER.values(), ids=NO_COMPILER)
def test_what_cannot_be_built_is_one_line_and_plain_pytorch(monkeypatch, caplog, tmp_path, environment, reason):
    (tmp_path / "file").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("ATTNRES_MARCH", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, str(tmp_path / value) if name == "XDG_CACHE_HOME" else value)
    monkeypatch.setattr(cpu, "SHIPPED", tmp_path)  # as if the package were no wheel
    monkeypatch.setattr(cpu, "load", cpu.load.__wrapped__)
    with caplog.at_level("WARNING", "attnres"):
        assert backends._prepare.__wrapped__("cpu") == "reference"
    told = [record.getMessage() for record in caplog.records if "plain PyTorch" in record.getMessage()]
    assert len(told) == 1 and reason in told[0] and "\n" not in told[0]


@pytest.fixture
def shelf(monkeypatch, tmp_path):
    """An empty cache, a copy of the sources, no library in the package, and a compiler that writes its target."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("ATTNRES_MARCH", raising=False)
    monkeypatch.setattr(cpu, "FOLDER", shutil.copytree(cpu.FOLDER, tmp_path / "csrc"))
    monkeypatch.setattr(cpu, "SHIPPED", tmp_path / "prebuilt")
    monkeypatch.setattr(cpu, "compile_to", lambda library, target, _: library.write_text(target))
    monkeypatch.setattr(cpu, "TARGETS", cpu._X86)
    return cpu.FOLDER


def test_a_library_that_was_cut_short_is_built_again(shelf, monkeypatch):
    """Loading it would end the process with a bus error."""
    library = cpu.build()
    library.write_text(library.read_text()[:-1])
    assert cpu.build() == library and library.read_text() == "native"
    monkeypatch.setattr(cpu, "compile_to", lambda *_: pytest.fail("built once more"))
    assert cpu.build() == library


def test_the_best_shipped_library_that_the_processor_can_run(shelf, monkeypatch, caplog):
    """Of this torch's minor version; one that does not load is compiled here, and that is said."""
    loaded = []

    def load_library(path):
        if path.read_text() == "broken":
            raise OSError("no such symbol")
        loaded.append(path.read_text())

    def load():
        assert cpu.load.__wrapped__()
        return loaded.pop()

    monkeypatch.setattr(torch.ops, "load_library", load_library)
    monkeypatch.setattr(cpu, "_features", lambda: "flags : " + " ".join(sorted(cpu._V3)))
    monkeypatch.setattr(torch, "__version__", "2.13.1+cu130")
    cpu.SHIPPED.mkdir()
    for name in ("torch-2.12-x86-64-v3.so", "torch-2.13-x86-64-v2.so", "torch-2.13-x86-64-v4.so"):
        (cpu.SHIPPED / name).write_text(name)
    assert load() == "torch-2.13-x86-64-v2.so"
    shipped = cpu.SHIPPED / "torch-2.13-x86-64-v3.so"
    shipped.write_text(shipped.name)
    assert load() == shipped.name
    for march in ("native", "x86-64-v3", "x86-64-v2"):
        monkeypatch.setenv("ATTNRES_MARCH", march)
        assert load() == (march if march == "native" else f"torch-2.13-{march}.so")
    monkeypatch.setenv("ATTNRES_MARCH", "x86-64-v4")  # which would end in an illegal instruction
    assert not cpu.load.__wrapped__() and "not 'x86-64-v4'" in caplog.text
    monkeypatch.delenv("ATTNRES_MARCH")
    shipped.write_text("broken")
    caplog.clear()
    assert load() == "native" and "no such symbol" in caplog.text
    monkeypatch.setattr(torch, "__version__", "2.14.0")
    assert load() == "native"


# A stand-in for the compiler: it notes each call and writes what it is asked for.
STAND_IN = """#!/bin/sh
echo called >> "$CALLS"
while [ $# -gt 1 ]; do [ "$1" = -o ] && out=$2; shift; done
echo > "$out"
"""


@pytest.mark.slow
def test_built_into_a_wheel(tmp_path):
    """One library per target and torch, under the names that `cpu.load` looks for."""
    stand_in, calls, installed = tmp_path / "c++", tmp_path / "calls", tmp_path / "installed"
    stand_in.write_text(STAND_IN)
    stand_in.chmod(0o755)
    other = tmp_path / "other" / "torch"
    other.mkdir(parents=True)
    (other / "version.py").write_text("__version__ = '2.99.0'\n")
    folders = f"{Path(torch.__file__).parents[1]}{os.pathsep}{other.parent}"
    environment = {"CXX": str(stand_in), "CALLS": str(calls), "ATTNRES_BUILD_KERNEL": folders}
    command = [sys.executable, "setup.py", "-q", "build_py", "--build-lib", installed]
    run = subprocess.run(command, cwd=here.parents[1], env=os.environ | environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert len(calls.read_text().splitlines()) == 2 * 3 * len(cpu.TARGETS), "each compiled, in two parts, and linked"
    made = {path.name for path in (installed / "attnres/ops/prebuilt").iterdir()}
    assert made == {
        cpu.shipped_name(target, version) for target in cpu.TARGETS for version in (torch.__version__, "2.99")
    }
