"""The kernel's inner loops compiled for other targets and by other compilers, and run: under qemu where need be."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from attnres.ops import cpu

ARM = ["aarch64-linux-gnu-g++", "-static", "-march=armv8-a"]
CASES = [
    pytest.param(["g++", "-march=x86-64"], [], "vectors of four", "x86-64-v2", marks=pytest.mark.slow),
    pytest.param(["clang++", "-march=x86-64-v3"], [], "AVX2", "x86-64-v3", marks=pytest.mark.slow),
    pytest.param(["g++", "-march=x86-64-v4"], [], "AVX-512", "x86-64-v4", marks=pytest.mark.slow),
    pytest.param(ARM, ["qemu-aarch64"], "NEON", None, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("compiler", "runner", "instruction_set", "needs"), CASES)
def test_inner_loops(tmp_path, compiler, runner, instruction_set, needs):
    if not all(map(shutil.which, [compiler[0], *runner])):
        pytest.skip(f"needs {' and '.join([compiler[0], *runner])}")
    if needs is not None and needs not in cpu.runnable():
        pytest.skip(f"needs a processor that is {needs}")
    program = tmp_path / "loops"
    source = Path(__file__).with_name("loops.cpp")
    command = [*compiler, "-std=c++20", "-O2", f"-I{cpu.FOLDER}", str(source), "-o", str(program)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    run = subprocess.run([*runner, str(program)], capture_output=True, text=True)
    assert run.returncode == 0, run.stdout
    assert run.stdout.strip() == instruction_set
