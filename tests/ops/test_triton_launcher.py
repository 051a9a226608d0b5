"""The kernels go through Triton's own launcher to a stub of the driver: what a machine without a GPU can see of it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

triton = pytest.importorskip("triton")

here = Path(__file__).parent


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("gcc") is None, reason="the stub is compiled with gcc")
def test_every_parameter_arrives_and_other_numbers_load_no_other_kernel(tmp_path):
    headers = Path(triton.__file__).parent / "backends" / "nvidia" / "include"
    command = ["gcc", "-w", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", f"-I{headers}", str(here / "stub_driver.c")]
    subprocess.run([*command, "-o", str(tmp_path / "libcuda.so.1")], check=True)
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment |= {"LD_LIBRARY_PATH": str(tmp_path), "TRITON_LIBCUDA_PATH": str(tmp_path)}
    command = [sys.executable, "-m", "tests.ops.stub_driver"]
    run = subprocess.run(command, env=environment, cwd=here.parents[1], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-3000:]
    one, other = map(json.loads, run.stdout.splitlines())
    for launch in (*one["launches"], *other["launches"]):
        assert launch["as given"] and launch["shared"] <= 48 * 1024
    names = ["forward_kernel", "backward_kernel", "parameters_kernel"]
    assert [launch["kernel"] for launch in one["launches"]] == names
    assert one["launches"][0]["grid"] == [16, 1, 1] and one["launches"][0]["block"] == 32
    assert other["launches"][0]["grid"] == [37, 1, 1]
    assert one["modules loaded"] == other["modules loaded"] == 3
