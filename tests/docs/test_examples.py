"""The code that README.md and CONTRIBUTING.md show is run."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import torch

import attnres.connections
from attnres import Transformer, TransformerConfig, connection_names, make_connection, mixing_matrix
from tests.depth import DIM, SITES, make_sublayers, randomise, trace

ROOT = Path(__file__).parents[2]


def python_blocks(name: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(encoding="utf-8"), re.DOTALL)


@pytest.fixture
def decay(tmp_path, monkeypatch) -> str:
    """The connection of CONTRIBUTING.md, added as one file to the folder of connections."""
    (source,) = python_blocks("CONTRIBUTING.md")
    (tmp_path / "decay.py").write_text(source, encoding="utf-8")
    monkeypatch.setattr(attnres.connections, "__path__", [*attnres.connections.__path__, str(tmp_path)])
    yield "decay"
    sys.modules.pop("attnres.connections.decay", None)


def test_a_newcomers_connection_is_one_file(decay):
    assert decay in connection_names()
    connection, sublayers = make_connection(decay, dim=DIM, sites=SITES), make_sublayers()
    randomise(connection)
    x = torch.randn(2, 3, DIM)
    sources, inputs = trace(connection, x, sublayers)
    matrix = mixing_matrix(connection, x, sublayers)
    rebuilt = torch.einsum("btli,ibtd->lbtd", matrix, torch.stack(sources))
    torch.testing.assert_close(rebuilt, torch.stack(inputs))
    model = Transformer(TransformerConfig(dim=16, layers=2, connection=decay))
    plain = Transformer(TransformerConfig(dim=16, layers=2, connection="residual"))
    tokens = torch.randint(256, (2, 9))
    torch.testing.assert_close(model(tokens), plain(tokens))


def test_a_file_with_no_connection_is_named(tmp_path, monkeypatch):
    (tmp_path / "empty.py").write_text("")
    monkeypatch.setattr(attnres.connections, "__path__", [*attnres.connections.__path__, str(tmp_path)])
    with pytest.raises(attnres.UsageError, match=r"empty.py must define one subclass of Connection, not 0"):
        make_connection("empty", dim=4, sites=2)


def test_a_typo_in_a_connection_is_named(tmp_path, monkeypatch):
    (tmp_path / "typo.py").write_text("class Typo(Connection\n")
    monkeypatch.setattr(attnres.connections, "__path__", [*attnres.connections.__path__, str(tmp_path)])
    with pytest.raises(attnres.UsageError, match=r"typo.py, line 1: .*; mend the connection's file"):
        make_connection("typo", dim=4, sites=2)


def test_the_readmes_code_runs(capsys):
    blocks = python_blocks("README.md")
    assert blocks
    for block in blocks:
        exec(compile(block, "README.md", "exec"), {})
