"""The code that the documents show is run, and the guide to connections has all of them."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import attnres.connections
from attnres import Transformer, TransformerConfig, connection_names, make_connection
from attnres.connections import connection_class, option_defaults
from tests.connections import test_every_connection as every_connection

ROOT = Path(__file__).parents[2]


def python_blocks(name: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(encoding="utf-8"), re.DOTALL)


@pytest.fixture
def decay(tmp_path, monkeypatch) -> str:
    """The connection of CONTRIBUTING.md, added as one file to the folder of connections."""
    (source,) = python_blocks("CONTRIBUTING.md")
    (tmp_path / "decay.py").write_text(source, encoding="utf-8")
    monkeypatch.setattr(attnres.connections.rules, "__path__", [*attnres.connections.rules.__path__, str(tmp_path)])
    yield "decay"
    sys.modules.pop("attnres.connections.decay", None)


def test_a_newcomers_connection_is_one_file(decay):
    assert decay in connection_names()
    model = Transformer(TransformerConfig(dim=16, layers=2, connection=decay))
    plain = Transformer(TransformerConfig(dim=16, layers=2, connection="residual"))
    tokens = torch.randint(256, (2, 9))
    torch.testing.assert_close(model(tokens), plain(tokens))


def test_a_newcomers_connection_passes_the_suite_that_is_cited(decay, tmp_path):
    for name, test in vars(every_connection).items():
        wanted = inspect.signature(test).parameters.keys() if name.startswith("test_") else set()
        if wanted == {"variant"}:
            test((decay, {}))
        elif wanted == {"name"}:
            test(decay)
    for arguments in (["check"], ["format", "--check"]):
        ran = subprocess.run(
            [sys.executable, "-m", "ruff", *arguments, str(tmp_path / "decay.py")], capture_output=True, text=True
        )
        assert ran.returncode == 0, ran.stdout


def test_a_file_with_no_connection_is_named(tmp_path, monkeypatch):
    (tmp_path / "empty.py").write_text("")
    monkeypatch.setattr(attnres.connections.rules, "__path__", [*attnres.connections.rules.__path__, str(tmp_path)])
    with pytest.raises(attnres.UsageError, match=r"empty.py must define one subclass of Connection, not 0"):
        make_connection("empty", dim=4, sublayers=2)


def test_the_readmes_code_runs(capsys):
    blocks = python_blocks("README.md")
    assert blocks
    for block in blocks:
        exec(compile(block, "README.md", "exec"), {})


@pytest.mark.parametrize("guide", ["docs/operators.md", "docs/connections.md"])
def test_a_guides_code_runs_in_its_order(guide):
    namespace: dict = {}
    for block in python_blocks(guide):
        exec(compile(block, guide, "exec"), namespace)


def test_the_guide_has_every_connection_and_option():
    guide = (ROOT / "docs" / "connections.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1:3] for line in guide.partition("## Options")[2].splitlines() if line.startswith("|")]
    for name in connection_names():
        assert f"\n| `{name}` |" in guide
        options = option_defaults(connection_class(name)).keys()
        found = {option for option in options for who, what in rows if f"`{option}`" in what and who_is(name, who)}
        assert found == options, name


def who_is(name: str, who: str) -> bool:
    return f"`{name}`" in who or "all with a norm" in who
