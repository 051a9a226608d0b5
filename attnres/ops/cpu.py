"""The CPU kernel: compiled once per machine and torch version, kept in the user's cache folder, loaded on first use.

`ATTNRES_BUILD_KERNEL=1 pip install --no-build-isolation .` compiles it at install time instead (setup.py), for where
there will be no compiler. It is then used if CPU and torch are those that it was compiled for.

It is compiled with the flags of torch's own extension loader, but not through it: that needs ninja, and its lock file
outlives a killed process and then blocks every later one.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import platform
import subprocess
import tempfile
from pathlib import Path

import torch

SOURCE = Path(__file__).parent / "csrc" / "attend.cpp"
KERNEL_SOURCES = (".cpp", ".h")
FLAGS = ["-std=c++20", "-O3", "-march=native", "-fPIC", "-fopenmp"]
BUILD_SECONDS = 10

log = logging.getLogger("attnres")


@functools.cache
def load() -> bool:
    """Register the kernel for the CPU, built if need be. Return False, with one warning, where that cannot be done."""
    try:
        torch.ops.load_library(build())
    except (OSError, BuildError) as error:
        log.warning("no CPU kernel, so depth attention runs in plain PyTorch, several times slower: %s", error)
        return False
    return True


class BuildError(RuntimeError):
    """The kernel could not be compiled."""


def build() -> Path:
    """Return the path of the compiled kernel, built if need be. Raises BuildError or OSError.

    Processes that start at once wait for the first one's build.
    """
    from attnres.files import cache_folder, locked, replacement  # setup.py loads this file alone

    if os.name != "posix":
        raise BuildError("it needs Linux or macOS with g++ or clang++")
    folder, name = cache_folder(), library_name()
    library = folder / name
    for built in (SOURCE.parent / name, library):
        if built.exists():
            return built
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / "build.lock", taken=lambda: None):
        if not library.exists():
            log.warning("building the CPU kernel, once, in about %d s", BUILD_SECONDS)
            with replacement(library) as partial:
                compile_to(partial)
    return library


def compiler() -> str:
    return os.environ.get("CXX") or "c++"


def library_name() -> str:
    """A file name for the compiled kernel, of all that it depends on."""
    sources = [path.read_text() for path in sorted(SOURCE.parent.iterdir()) if path.suffix in KERNEL_SOURCES]
    parts = [*sources, " ".join(FLAGS), compiler(), torch.__version__, platform.machine(), _cpu_features()]
    return f"attend-{hashlib.sha256(chr(10).join(parts).encode()).hexdigest()[:20]}.so"


def compile_to(library: Path) -> None:
    from torch.utils.cpp_extension import include_paths, library_paths

    with tempfile.TemporaryDirectory() as folder:
        compiled = Path(folder) / "attend.o"
        includes = [f"-isystem{path}" for path in include_paths()]
        abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"
        _call([compiler(), *FLAGS, abi, *includes, "-c", str(SOURCE), "-o", str(compiled)])
        # Linked without -fopenmp: the thread pool must be the one that torch has loaded, and not a second that
        # spins against it.
        libraries = [f"-L{path}" for path in library_paths()]
        _call([compiler(), "-shared", str(compiled), "-o", str(library), *libraries, "-lc10", "-ltorch_cpu"])


def _call(command: list[str]) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except FileNotFoundError:
        raise BuildError(f"there is no C++ compiler {command[0]!r}; install g++ or set CXX") from None
    except subprocess.CalledProcessError as error:
        lines = [line for line in error.stderr.splitlines() if "error" in line] or error.stderr.splitlines() or ["?"]
        raise BuildError(f"{command[0]} failed: {lines[0].strip()}") from None


def _cpu_features() -> str:
    """What -march=native sees. A home folder may be shared by machines of different kinds."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = ("model name", "flags", "Features")
    return "\n".join(sorted({line for line in lines if line.split("\t")[0].strip() in names}))
