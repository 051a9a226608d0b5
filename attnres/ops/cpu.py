"""The CPU kernel, loaded on first use: one that came with the package, or compiled once and kept in a cache folder.

A wheel brings one library per target and minor version of torch (setup.py), of which each machine loads the best that
it can run. Where there is none, as on macOS or with another torch, the machine's own is compiled.

ATTNRES_MARCH in the environment chooses the target: `native`, which is always compiled here, or one of TARGETS.

It is compiled with the flags of torch's own extension loader, but not through it: that needs ninja, and its lock file
outlives a killed process and then blocks every later one.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import platform
import shlex
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

FOLDER = Path(__file__).parent / "csrc"
SHIPPED = Path(__file__).parent / "prebuilt"
KERNEL_SOURCES = (".cpp", ".h")
FLAGS = ["-std=c++20", "-fPIC", "-fvisibility=hidden"]
BUILD_SECONDS = 40
NATIVE = "native"

_V2 = {"cx16", "lahf_lm", "popcnt", "sse4_1", "sse4_2", "ssse3"}
_V3 = _V2 | {"abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe", "xsave"}
_V4 = _V3 | {"avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl"}
_X86 = {"x86-64-v4": _V4, "x86-64-v3": _V3, "x86-64-v2": _V2}
_ARM = {"armv8-a": set()}
_MACHINES = {"x86_64": _X86, "aarch64": _ARM, "arm64": _ARM}

TARGETS: dict[str, set[str]] = _MACHINES.get(platform.machine(), {})
"""What the compiler's -march may be on this kind of machine, best first, and the features that Linux must then list."""

log = logging.getLogger("attnres")


@functools.cache
def load() -> bool:
    """Register the kernel for the CPU, built if need be. Return False, with one warning, where that cannot be done."""
    try:
        for shipped in _shipped()[:1]:
            try:
                torch.ops.load_library(shipped)
                return True
            except OSError as error:  # such as another C library
                log.warning("the CPU kernel of this package does not load here: %s", error)
        torch.ops.load_library(build())
    except (OSError, BuildError) as error:
        log.warning("no CPU kernel, so depth attention runs in plain PyTorch, several times slower: %s", error)
        return False
    return True


class BuildError(RuntimeError):
    """The kernel could not be compiled."""


def instruction_set() -> str:
    """Name what depth attention runs on here: AVX-512, AVX2, SSE4.2 or NEON, or "plain PyTorch" without a kernel."""
    return torch.ops.attnres.cpu_instruction_set() if load() else "plain PyTorch"


def trim() -> int:
    """Free the memory that the CPU kernel keeps for its next results, at most 256 MB. Return how many bytes that was.

    Use it when depth attention is finished and the memory is needed elsewhere.
    """
    return torch.ops.attnres.cpu_trim() if hasattr(torch.ops.attnres, "cpu_trim") else 0


def _chosen() -> str | None:
    """The target that ATTNRES_MARCH names."""
    chosen = os.environ.get("ATTNRES_MARCH") or None
    possible = (NATIVE, *runnable())
    if chosen not in (None, *possible):
        raise BuildError(f"ATTNRES_MARCH can be {' or '.join(possible)} on this machine, not {chosen!r}")
    return chosen


def shipped_name(target: str, version: str) -> str:
    """The file name in SHIPPED for a version of torch, whose C++ interface stays as it is within a minor version."""
    return f"torch-{'.'.join(version.split('.')[:2])}-{target}.so"


def _shipped() -> list[Path]:
    """The libraries that came with the package for this processor and torch, best first."""
    chosen = _chosen()
    names = [shipped_name(target, torch.__version__) for target in runnable() if chosen in (None, target)]
    return [SHIPPED / name for name in names if (SHIPPED / name).exists()]


def build() -> Path:
    """Return the path of the kernel compiled here, built if need be. Raises BuildError or OSError.

    Processes that start at once wait for the first one's build.
    """
    from attnres.files import cache_folder, locked, replacement, write_text  # setup.py loads this file alone

    if os.name != "posix":
        raise BuildError("it needs Linux or macOS with g++ or clang++")
    target = _chosen() or NATIVE
    library = cache_folder() / library_name(target, compiler(), _features())
    if _is_whole(library):
        return library
    library.parent.mkdir(parents=True, exist_ok=True)
    with locked(library.parent / "build.lock", taken=lambda: None):
        if not _is_whole(library):
            log.warning("building the CPU kernel, once, in about %d s", BUILD_SECONDS)
            with replacement(library) as partial:
                compile_to(partial, target, Path(torch.__file__).parent)
                checksum = _checksum(partial)
            write_text(_checksum_file(library), checksum)
    return library


def _is_whole(library: Path) -> bool:
    """Whether the file is all that was compiled: loading one that was cut short ends the process with a bus error."""
    try:
        return _checksum_file(library).read_text() == _checksum(library)
    except OSError:
        return False


def _checksum(library: Path) -> str:
    return hashlib.sha256(library.read_bytes()).hexdigest()


def _checksum_file(library: Path) -> Path:
    return library.with_suffix(".sha256")


def compiler() -> str:
    return os.environ.get("CXX", "").strip() or "c++"


def library_name(target: str, *built_with: str) -> str:
    """A file name for the compiled kernel, of all that it depends on."""
    texts = [path.read_text() for path in sorted(FOLDER.iterdir()) if path.suffix in KERNEL_SOURCES]
    parts = [*texts, " ".join(FLAGS), torch.__version__, platform.machine(), *built_with]
    return f"attend-{target}-{hashlib.sha256(chr(10).join(parts).encode()).hexdigest()[:20]}.so"


def compile_to(library: Path, target: str, torch_folder: Path) -> None:
    """Compile the kernel for NATIVE or one of TARGETS, and for the torch of that folder. Raises BuildError."""
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor() as threads:
        *compiling, linking = commands(library, target, torch_folder, Path(folder))
        list(threads.map(_call, compiling))
        _call(linking)


def commands(library: Path, target: str, torch_folder: Path, folder: Path) -> list[list[str]]:
    """The compiler's calls, one for each file and the linker's, which gcc, clang and Apple's clang all take.

    Raises BuildError if CXX is no command.

    No -fopenmp, which the last rejects: the threads are torch's own (csrc/parallel.h).
    """
    # Apple's clang knows no -march=native on ARM, where gcc takes either.
    machine = "-mcpu=native" if target == NATIVE and "armv8-a" in TARGETS else f"-march={target}"
    headers, libraries = torch_folder / "include", torch_folder / "lib"
    flags = [machine, f"-isystem{headers}", f"-isystem{headers / 'torch/csrc/api/include'}"]
    paths = [f"-L{libraries}"]
    if sys.platform == "darwin":
        paths.append(f"-Wl,-rpath,{libraries}")
    try:
        call = shlex.split(compiler())  # `ccache g++` is two words
    except ValueError as error:
        raise BuildError(f"CXX is no command: {error}") from None
    compiled = {source: str(folder / f"{source.stem}.o") for source in sorted(FOLDER.glob("*.cpp"))}
    return [
        # What is made of torch's headers is no faster with more.
        *(
            [*call, *FLAGS, "-O1" if file.stem == "library" else "-O3", *flags, "-c", str(file), "-o", to]
            for file, to in compiled.items()
        ),
        [*call, "-shared", *compiled.values(), "-o", str(library), *paths, "-lc10", "-ltorch_cpu"],
    ]


def _call(command: list[str]) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except FileNotFoundError:
        raise BuildError(f"there is no C++ compiler {command[0]!r}; install g++ or set CXX") from None
    except subprocess.CalledProcessError as error:
        lines = [line for line in error.stderr.splitlines() if "error" in line] or error.stderr.splitlines() or ["?"]
        raise BuildError(f"{command[0]} failed: {lines[0].strip()}") from None


def runnable() -> list[str]:
    """Those of TARGETS that this processor has the features for."""
    have = set(_features().split())
    return [target for target, needed in TARGETS.items() if needed <= have]


def _features() -> str:
    """What the compiler sees of this processor. A home folder may be shared by machines of different kinds."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = ("model name", "flags", "Features")
    return "\n".join(sorted({line for line in lines if line.split("\t")[0].strip() in names}))
