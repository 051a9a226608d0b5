"""Everything is in pyproject.toml but this: the CPU kernel compiled into the wheel, where it is asked for.

    ATTNRES_BUILD_KERNEL=1 pip install --no-build-isolation .     # for the torch that is installed
    ATTNRES_BUILD_KERNEL=torch-2.13:torch-2.14 python -m build    # for each of these, made by pip install --target

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

ASKED_FOR = os.environ.get("ATTNRES_BUILD_KERNEL", "")


def torch_folders() -> list[Path]:
    if ASKED_FOR != "1":
        return [Path(folder) / "torch" for folder in ASKED_FOR.split(os.pathsep)]
    found = importlib.util.find_spec("torch")
    if found is None:
        sys.exit("ATTNRES_BUILD_KERNEL=1 needs torch installed, and pip's --no-build-isolation")
    return [Path(found.origin).parent]


class BuildKernel(build_py):
    def run(self) -> None:
        super().run()
        if not ASKED_FOR or self.editable_mode:
            return
        folders = torch_folders()
        sys.modules.setdefault("torch", ModuleType("torch"))  # compiling needs its headers and libraries alone
        spec = importlib.util.spec_from_file_location("cpu", Path(__file__).parent / "attnres" / "ops" / "cpu.py")
        cpu = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(cpu)
        to = Path(self.build_lib) / "attnres" / "ops" / cpu.SHIPPED.name
        to.mkdir(exist_ok=True)
        for folder in folders:
            (version,) = re.findall(r"__version__ = '(.*)'", (folder / "version.py").read_text(encoding="utf-8"))
            for target in cpu.TARGETS:
                cpu.compile_to(to / cpu.shipped_name(target, version), target, folder)


class AnyPython(bdist_wheel):
    """The kernel is loaded by torch, and the same for every Python."""

    def get_tag(self) -> tuple[str, str, str]:
        return ("py3", "none", super().get_tag()[2])


class OneKindOfMachine(Distribution):
    def has_ext_modules(self) -> bool:
        return bool(ASKED_FOR)


setup(cmdclass={"build_py": BuildKernel, "bdist_wheel": AnyPython}, distclass=OneKindOfMachine)
