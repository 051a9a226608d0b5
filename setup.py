"""Everything is in pyproject.toml but this: a kernel compiled at install time, where it is asked for.

    ATTNRES_BUILD_KERNEL=1 pip install --no-build-isolation .

It is compiled against the torch that is installed, which is why the build may not be isolated from it, and for every
target of this kind of machine (cpu.TARGETS), so that a wheel serves others too.
"""

import importlib.util
import os
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.dist import Distribution

ASKED_FOR = os.environ.get("ATTNRES_BUILD_KERNEL") == "1"


class BuildKernel(build_py):
    def run(self) -> None:
        super().run()
        if ASKED_FOR and not self.editable_mode:
            spec = importlib.util.spec_from_file_location("cpu", Path(__file__).parent / "attnres" / "ops" / "cpu.py")
            cpu = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(cpu)
            for target in cpu.TARGETS:
                cpu.compile_to(Path(self.build_lib) / "attnres" / "ops" / "csrc" / cpu.library_name(target), target)


class OneKindOfMachine(Distribution):
    def has_ext_modules(self) -> bool:
        return ASKED_FOR


setup(cmdclass={"build_py": BuildKernel}, distclass=OneKindOfMachine)
