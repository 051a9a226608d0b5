"""Let torch's build for CUDA load on a machine without a GPU, and without 3.1 GiB of CUDA's libraries beside it.

torch 2.14 comes from PyPI for Linux as one build. It is linked to cuBLAS, cuDNN, NCCL and others, without which it does
not load, and calls none of them where there is no GPU. So each gets a stand-in of its name that has the functions and
versions that torch was linked to, and returns an error from all of them. The CUDA runtime, which is asked whether there
is a GPU, stays the real one (2 MB). Run by the Python of an environment, after

    pip install --no-deps torch==2.14.1 nvidia-cuda-runtime==13.0.96

and before anything that needs torch is installed: it also takes the libraries off torch's list of what it requires, so
that an installer does not bring them. Needs gcc and binutils.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections import defaultdict
from importlib.metadata import distribution
from pathlib import Path

REAL = "libcudart.so.13"
LIBRARY = re.compile(r"Shared library: \[(lib(?:cu|nccl|nv)\S+)\]")
FUNCTION = re.compile(r"(?:cu[A-Zbdfrsp]|nccl|nvrtc|nvshmem|__cuda)\w*")
VERSIONS = {"libnvshmem_host.so.3": "NVSHMEM"}
"""The version of a library's functions, where it is not the library's name."""
UNVERSIONED = "libnccl.so.2"
"""Which stand-in has the functions without a version: of whatever library, a program finds them in any."""


def main() -> None:
    missing = [tool for tool in ("gcc", "nm", "readelf") if shutil.which(tool) is None]
    if missing:
        sys.exit(f"torch's stand-ins for CUDA's libraries need {' and '.join(missing)}; install gcc and binutils")
    torch = distribution("torch")
    libraries = Path(str(torch.locate_file("torch/lib")))
    if not (libraries / "libtorch_cuda.so").exists():
        return  # macOS: a build without CUDA
    binaries = [*sorted(libraries.glob("*torch*.so")), libraries / "libc10_cuda.so"]
    needed: set[str] = set(LIBRARY.findall(_output("readelf", "-d", *binaries)))
    functions = defaultdict(set)
    for line in _output("nm", "-D", "--undefined-only", *binaries).splitlines():
        name, _, version = (line.split() or [""])[-1].partition("@")
        if FUNCTION.fullmatch(name):
            functions[version].add(name)
    for library in sorted(needed - {REAL}):
        version = "" if library == UNVERSIONED else VERSIONS.get(library, library)
        _stand_in(libraries / library, functions[version], version)
    metadata = Path(str(torch.locate_file(f"torch-{torch.version}.dist-info/METADATA")))
    required = re.sub(r"(?m)^Requires-Dist: (?:cuda|nvidia)-.*\n", "", metadata.read_text())
    metadata.unlink()  # the file may be a hard link into uv's cache, which stays as it is
    metadata.write_text(required)


def _stand_in(library: Path, names: set[str], version: str) -> None:
    source, script = library.with_suffix(".c"), library.with_suffix(".map")
    source.write_text("".join(f"int {name}(void) {{ return 100; }}\n" for name in sorted(names)))
    script.write_text(f"{version} {{ global: *; }};\n")
    named = [f"-Wl,-soname,{library.name}", *([f"-Wl,--version-script={script}"] if version else [])]
    subprocess.run(["gcc", "-w", "-shared", "-fPIC", *named, "-o", str(library), str(source)], check=True)
    source.unlink()
    script.unlink()


def _output(*command: str | Path) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    main()
