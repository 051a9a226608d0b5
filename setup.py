"""Everything is in pyproject.toml but this: the CPU kernel compiled into the wheel, where it is asked for.

    ATTNRES_BUILD_KERNEL=/a/site-packages:/another pip wheel --no-deps .    # for the torch in each of these folders

It is compiled for every target of this kind of machine (cpu.TARGETS), so that a wheel serves others too.
"""

import importlib.util
import os
import re
import sys
from pathlib import Path
from types import ModuleType

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py
from setuptools.dist import Distribution

FOLDERS = [Path(folder, "torch") for folder in os.environ.get("ATTNRES_BUILD_KERNEL", "").split(os.pathsep) if folder]


class BuildKernel(build_py):
    def run(self) -> None:
        super().run()
        if not FOLDERS or self.editable_mode:
            return
        sys.modules.setdefault("torch", ModuleType("torch"))  # compiling needs its headers and libraries alone
        spec = importlib.util.spec_from_file_location("cpu", Path(__file__).parent / "attnres" / "ops" / "cpu.py")
        cpu = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(cpu)
        to = Path(self.build_lib) / "attnres" / "ops" / cpu.SHIPPED.name
        to.mkdir(exist_ok=True)
        for folder in FOLDERS:
            (version,) = re.findall(r"__version__ = '(.*)'", (folder / "version.py").read_text(encoding="utf-8"))
            for target in cpu.TARGETS:
                cpu.compile_to(to / cpu.shipped_name(target, version), target, folder)


class AnyPython(bdist_wheel):
    """The kernel is loaded by torch, and the same for every Python."""

    def get_tag(self) -> tuple[str, str, str]:
        return ("py3", "none", super().get_tag()[2])


class OneKindOfMachine(Distribution):
    def has_ext_modules(self) -> bool:
        return bool(FOLDERS)


setup(cmdclass={"build_py": BuildKernel, "bdist_wheel": AnyPython}, distclass=OneKindOfMachine)
