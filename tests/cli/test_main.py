"""What the command line makes of errors that any command can have."""

from __future__ import annotations

import io
import os
import sys

from attnres import cli


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
