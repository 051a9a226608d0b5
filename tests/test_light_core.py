"""What torch and numpy alone are enough for, what is said where more is needed, and what help does without."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import attnres
from attnres.cli import command_names
from attnres.errors import LAB

ROOT = Path(__file__).parents[1]
SLOW = {"matplotlib", "numpy", "scipy", "torch", "transformers"}
"""What takes a part of a second, or seconds, to import."""

OF_TORCH = {"filelock", "jinja2"}  # installed with it
HEAVY = {*LAB, "accelerate", "datasets", "lm_eval", "tokenizers", "transformers"} - OF_TORCH

BLOCKED = f"""
import sys

asked = set()

class WithoutHeavy:
    def __init__(self, finder):
        self.finder = finder
    def find_spec(self, name, *rest):
        if (module := name.partition(".")[0]) in {HEAVY!r}:
            asked.add(module)
            return None
        return self.finder.find_spec(name, *rest)
    def __getattr__(self, name):
        return getattr(self.finder, name)

sys.meta_path = [WithoutHeavy(finder) for finder in sys.meta_path]
"""

USE = """
import torch
import attnres

asked.clear()
attnres.depth_attention([torch.randn(2, 3, 8)], torch.randn(8))
x = torch.randn(2, 3, 8)
sublayers = [torch.nn.Linear(8, 8) for _ in range(4)]
for name in attnres.connection_names():
    attnres.mixing_matrix(attnres.make_connection(name, 8, 4), x, sublayers)
print(sorted(asked))
for missing in ("attnres.plot_depth_matrix", "import attnres.hf"):
    try:
        exec(missing)
    except ImportError as error:
        print(error)
"""


def python(code: str, *arguments: str) -> list[str]:
    """The lines that this program prints, on either stream."""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert done.returncode == 0, done.stdout
    return done.stdout.splitlines()


def test_connections_and_operators_need_torch_and_numpy_alone_and_the_rest_says_what_it_needs():
    """Without the modules of all extras, which nothing here even asks for, were they there."""
    asked, figure, transformers = python(BLOCKED + USE)[-3:]
    assert asked == "[]"
    assert re.search(r"attnres\.plot_depth_matrix needs \w+; pip install 'attnres\[lab\]'$", figure)
    assert re.search(r"^attnres\.hf needs safetensors.*pip install 'attnres\[hf\]'$", transformers)


def test_every_command_without_the_lab_says_in_one_line_what_to_install():
    calls = "from attnres.cli import command_names, main\n"
    calls += "for name in [*command_names(), '--version', '--help']: print(main([name]), flush=True)\n"
    lines = python(BLOCKED + calls)
    refused, shown = lines[: 2 * len(command_names())], lines[2 * len(command_names()) :]
    assert set(refused[1::2]) == {"2"} and shown[1] == "0" == shown[-1]
    assert all(line.endswith("pip install 'attnres[lab]'") and "tyro" in line for line in refused[::2])


def test_help_imports_nothing_that_takes_its_time():
    """Nor does the default of an option. By what was imported, and by no clock."""
    calls = "import sys\nfrom attnres.cli import main\n"
    calls += "for name in sys.argv[1:]:\n    try: main([name, '--help'])\n    except SystemExit: pass\n"
    calls += f"    print('imported:', name, *{SLOW!r} & set(sys.modules))"
    names = command_names()
    imported = [line.split()[1:] for line in python(calls, *names) if line.startswith("imported:")]
    assert imported == [[name] for name in names]


def test_everything_at_the_top_level_is_there():
    assert all(getattr(attnres, name) is not None for name in attnres.__all__)
    assert attnres.depth_profile is attnres.analysis.depth_profile
    with pytest.raises(AttributeError, match="has no attribute 'depth_profil'"):
        attnres.depth_profil  # noqa: B018


@pytest.mark.parametrize("package", ["analysis", "connections", "data", "model", "model.backbones", "report", "train"])
def test_a_package_has_all_that_it_says_it_has(package):
    """Its names come on first use: one that its module lacks would be noticed by its first user alone."""
    module = importlib.import_module(f"attnres.{package}")
    assert all(getattr(module, name) is not None for name in module.__all__)


def test_the_extra_is_what_commands_look_for():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = [re.split(r"[<>=]", requirement)[0] for requirement in project["optional-dependencies"]["lab"]]
    assert sorted(names) == sorted(LAB)
