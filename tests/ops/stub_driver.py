"""Launch the Triton kernels through Triton's own launcher on a stub of the driver, and print what arrived there.

    LD_LIBRARY_PATH=FOLDER TRITON_LIBCUDA_PATH=FOLDER python -m tests.ops.stub_driver     # FOLDER has libcuda.so.1

`test_triton_launcher.py` builds the stub and reads the lines.
"""

from __future__ import annotations

import ctypes
import json
import struct
from collections.abc import Iterator
from typing import Any

import torch
import triton
from triton.backends.nvidia.driver import CudaDriver, CudaLauncher, CudaUtils

from tests.ops.launches import Call, launches_of

STUB = ctypes.CDLL("libcuda.so.1")
CALLS = {
    "one": Call(64, merges=True, sources=2),
    "other numbers": Call(64, merges=True, sources=3, tokens=37),
}


FORMATS = {"i32": "i", "fp32": "f", "i64": "q"}  # a pointer is 8 bytes
launches: list[dict[str, Any]] = []


class Launcher(CudaLauncher):
    """Tells the stub how many parameters to expect, and holds what it got against the arguments."""

    def __init__(self, source: Any, metadata: Any) -> None:
        super().__init__(source, metadata)
        self.name, self.types = metadata.name, tuple(source.signature.values())

    def __call__(self, *given: Any) -> None:
        arguments = b"".join(_bytes(kind, x) for kind, x in _parameters(self.types, given[9:]))
        sizes = [len(_bytes(kind, x)) for kind, x in _parameters(self.types, given[9:])] + [8, 8]  # scratch memory
        ctypes.c_int.in_dll(STUB, "expected_count").value = len(sizes)
        (ctypes.c_int * 1024).in_dll(STUB, "expected_sizes")[: len(sizes)] = sizes
        super().__call__(*given)
        got = bytes((ctypes.c_ubyte * sum(sizes)).in_dll(STUB, "launched"))
        block, shared = (ctypes.c_uint.in_dll(STUB, f"launched_{what}").value for what in ("block", "shared"))
        launches.append(
            {
                "kernel": self.name,
                "grid": (ctypes.c_uint * 3).in_dll(STUB, "launched_grid")[:],
                "block": block,
                "shared": shared,
                "bytes": sum(sizes),
                "as given": got == arguments + bytes(16),
            }
        )


def _parameters(kinds: Any, arguments: Any) -> Iterator[tuple[str, Any]]:
    """Flatten the arguments beside their kinds, without the constants of the build."""
    for kind, x in zip(kinds, arguments, strict=True):
        if isinstance(kind, tuple):
            yield from _parameters(kind, x)
        elif kind != "constexpr":
            yield kind, x


def _bytes(kind: str, x: Any) -> bytes:
    return struct.pack(FORMATS.get(kind, "Q"), x.data_ptr() if isinstance(x, torch.Tensor) else x)


class StubDriver(CudaDriver):
    """An H100 by what it says."""

    def __init__(self) -> None:  # without asking torch, which sees no device
        self.utils, self.launcher_cls = CudaUtils(), Launcher

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, _: int) -> int:
        return 0

    def get_device_capability(self, _: int) -> tuple[int, int]:
        return 9, 0


def main() -> None:
    triton.runtime.driver.set_active(StubDriver())
    for name, call in CALLS.items():
        launches.clear()
        for launch in (launch for direction in launches_of(call) for launch in direction):
            launch.kernel[launch.grid](**launch.arguments, num_warps=launch.options.num_warps)
        loaded = ctypes.c_int.in_dll(STUB, "modules_loaded").value
        print(json.dumps({"call": name, "modules loaded": loaded, "launches": launches}))


if __name__ == "__main__":
    main()
