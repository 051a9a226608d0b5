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
PARAMETER_BYTES = 4096
"""What a launch may pass on every GPU and driver."""


@pytest.fixture(scope="module")
def launched(tmp_path_factory) -> dict[str, dict]:
    if shutil.which("gcc") is None:
        pytest.skip("the stub is compiled with gcc")
    folder = tmp_path_factory.mktemp("driver")
    headers = Path(triton.__file__).parent / "backends" / "nvidia" / "include"
    command = ["gcc", "-w", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", f"-I{headers}", str(here / "stub_driver.c")]
    subprocess.run([*command, "-o", str(folder / "libcuda.so.1")], check=True)
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment |= {"LD_LIBRARY_PATH": str(folder), "TRITON_LIBCUDA_PATH": str(folder)}
    run = subprocess.run(
        [sys.executable, "-m", "tests.ops.stub_driver"],
        env=environment,
        cwd=here.parent.parent,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    return {call["call"]: call for call in map(json.loads, run.stdout.splitlines())}


def test_every_parameter_arrives_as_it_was_given(launched):
    for call in launched.values():
        assert call["launches"] and all(launch["as given"] for launch in call["launches"]), call
        assert max(launch["bytes"] for launch in call["launches"]) <= PARAMETER_BYTES


def test_other_numbers_load_no_other_kernel(launched):
    """Neither tokens nor sources, up to 16, make a build: none is compiled in training that decoding has not met."""
    names = list(launched)
    for name in ("one", "eight"):
        assert names.index(f"{name}, other numbers") == names.index(name) + 1
        assert launched[f"{name}, other numbers"]["modules loaded"] == launched[name]["modules loaded"]


def test_programs_and_threads(launched):
    forward, backward, parameters = launched["one"]["launches"]
    assert [launch["kernel"] for launch in (forward, backward, parameters)] == [
        "forward_kernel",
        "backward_kernel",
        "parameters_kernel",
    ]
    assert forward["grid"] == [16, 1, 1] and forward["block"] == 32
    assert launched["one, other numbers"]["launches"][0]["grid"] == [37, 1, 1]
    assert all(launch["shared"] <= 48 * 1024 for call in launched.values() for launch in call["launches"])
