"""The recipe for a GPU, a shell script around attnres scaling, with a stand-in for Python."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from attnres.cli import main

SCRIPT = Path(__file__).parents[2] / "recipes" / "decide.sh"
OPTIONS = ("ARMS", "DATA", "MORE", "RUNS", "SEEDS", "SIZES")
"""What it takes from the environment."""


def decide(tmp_path: Path, *arguments: str, python: str = "exit 0", **environment: str):
    """Run it with that program as `python`, which also writes its arguments, one a line, to tmp_path/called."""
    (tmp_path / "python").write_text(f"#!/usr/bin/env bash\nprintf '%s\\n' \"$@\" > {tmp_path}/called\n{python}\n")
    (tmp_path / "python").chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if name not in OPTIONS}
    kept |= {"PATH": f"{tmp_path}:{os.environ['PATH']}", **environment}
    return subprocess.run(["bash", SCRIPT, *arguments], env=kept, capture_output=True, text=True)


def test_it_stops_in_time_and_says_whether_it_is_done(tmp_path):
    done = decide(tmp_path)
    assert (done.returncode, done.stdout) == (0, "done: runs/decide/decide.json\n")
    stopped = decide(tmp_path, "0.01", python="sleep 60")
    assert stopped.returncode == 124 and stopped.stdout.endswith("everything is kept: call it again\n")
    failed = decide(tmp_path, python="echo attnres: no >&2; exit 2")
    assert (failed.returncode, failed.stdout, failed.stderr) == (2, "", "attnres: no\n")


@pytest.mark.parametrize("given", [{}, {"DATA": "--data.dataset sympy", "ARMS": "residual block", "MORE": "--seed 3"}])
def test_attnres_understands_it(given, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    decide(tmp_path, **given)
    _, module, *arguments = (tmp_path / "called").read_text().splitlines()
    planned = []
    monkeypatch.setattr("attnres.data.open_corpus", lambda data: planned.append(data) or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        main(arguments)
    assert module == "attnres" and planned[0].dataset == ("sympy" if given else "torch")
    assert planned[0].tokenizer == "bpe:8192"
