"""What torch and numpy alone are enough for, and what is said where more is needed."""

from __future__ import annotations

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
OF_TORCH = {"filelock", "jinja2"}  # installed with it
HEAVY = {*LAB, "accelerate", "datasets", "lm_eval", "tokenizers", "transformers"} - OF_TORCH

BLOCKED = f"""
import sys

class WithoutHeavy:
    def __init__(self, finder):
        self.finder = finder
    def find_spec(self, name, *rest):
        return None if name.partition(".")[0] in {HEAVY!r} else self.finder.find_spec(name, *rest)
    def __getattr__(self, name):
        return getattr(self.finder, name)

sys.meta_path = [WithoutHeavy(finder) for finder in sys.meta_path]
"""

USE = """
import torch
import attnres

attnres.depth_attention([torch.randn(2, 3, 8)], torch.randn(8))
x = torch.randn(2, 3, 8)
sublayers = [torch.nn.Linear(8, 8) for _ in range(4)]
for name in attnres.connection_names():
    attnres.mixing_matrix(attnres.make_connection(name, 8, 4), x, sublayers)
"""


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)


def test_connections_and_operators_need_torch_and_numpy_alone():
    done = python(BLOCKED + USE)
    assert done.returncode == 0, done.stderr


def test_importing_them_imports_nothing_heavy():
    done = python(f"{USE}\nimport sys\nprint(*{{name.partition('.')[0] for name in sys.modules}})")
    assert done.returncode == 0, done.stderr
    imported = set(done.stdout.split())
    assert "attnres" in imported and not imported & HEAVY


def test_every_command_without_the_lab_says_in_one_line_what_to_install():
    calls = f"from attnres.cli import main\nfor name in {command_names()!r}: print(main([name]))"
    done = python(BLOCKED + calls)
    assert done.stdout.split() == ["2"] * len(command_names())
    lines = done.stderr.splitlines()
    assert len(lines) == len(command_names())
    assert all(line.endswith("pip install -e '.[lab]'") and "tyro" in line for line in lines)


def test_everything_at_the_top_level_is_there():
    assert all(getattr(attnres, name) is not None for name in attnres.__all__)
    assert attnres.depth_profile is attnres.analysis.depth_profile
    with pytest.raises(AttributeError, match="has no attribute 'depth_profil'"):
        attnres.depth_profil  # noqa: B018


def test_what_needs_the_lab_says_so():
    done = python(f"{BLOCKED}\nimport attnres\nattnres.plot_depth_matrix")
    last = done.stderr.splitlines()[-1]
    assert re.search(r"attnres\.plot_depth_matrix needs \w+; .* pip install -e '\.\[lab\]'$", last)


def test_transformers_side_says_what_to_install():
    last = python(f"{BLOCKED}\nimport attnres.hf").stderr.splitlines()[-1]
    assert last.startswith("ImportError: attnres.hf needs safetensors") and last.endswith("pip install -e '.[hf]'")


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_help_and_version_need_no_lab(option):
    done = python(f"{BLOCKED}\nfrom attnres.cli import main\nsys.exit(main([{option!r}]))")
    assert done.returncode == 0 and done.stdout


def test_the_extra_is_what_commands_look_for():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = [re.split(r"[<>=]", requirement)[0] for requirement in project["optional-dependencies"]["lab"]]
    assert sorted(names) == sorted(LAB)
