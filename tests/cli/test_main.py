"""What the command line makes of errors that any command can have."""

from __future__ import annotations

import io
import os
import sys

import numpy as np
import pytest
import torch

from attnres import cli


@pytest.mark.parametrize("allocate", [lambda: np.empty(2**58), lambda: torch.empty(2**58)], ids=["numpy", "torch"])
def test_too_little_memory_is_one_line(allocate, monkeypatch, capsys):
    monkeypatch.setattr(cli, "_run", lambda *_: allocate())
    assert cli.main(["train"]) == 1
    assert capsys.readouterr().err == (
        "attnres: there is not enough memory for this; take a smaller model, context or batch\n"
    )


def test_an_output_without_a_character_shows_its_code(monkeypatch):
    """PYTHONIOENCODING=ascii, a console of Windows, a file's name that is no UTF-8."""
    output = io.TextIOWrapper(io.BytesIO(), "ascii")
    monkeypatch.setattr(sys, "stdout", output)
    monkeypatch.setattr(cli, "_run", lambda *_: print("caf\u00e9 \u00b1 \udcff") or 0)
    assert cli.main(["cost"]) == 0
    assert output.buffer.getvalue() == rb"caf\xe9 \xb1 \udcff" + os.linesep.encode()


def test_a_reader_of_tables_may_go(monkeypatch, capsys):
    read, write = os.pipe()
    os.close(read)
    with open(write, "w") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        assert cli.main(["cost"]) == 141
        monkeypatch.undo()
    assert capsys.readouterr().err == ""


def test_completion_knows_every_command(capsys):
    with pytest.raises(SystemExit):
        cli.main(["--tyro-print-completion", "bash"])
    script = capsys.readouterr().out
    assert "complete -F _tyro_attnres attnres" in script and all(f"'{name}'" in script for name in cli.command_names())
