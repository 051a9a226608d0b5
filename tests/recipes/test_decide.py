"""The recipe for a GPU: a shell script around attnres scaling, here with a stand-in for Python."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from attnres.cli import main

SCRIPT = Path(__file__).parents[2] / "recipes" / "decide.sh"


@pytest.fixture
def decide(tmp_path):
    """Run the script with a program as `python`; return the process and the arguments that it was called with."""

    def call(program: str, *arguments: str, **environment: str) -> tuple[subprocess.CompletedProcess[str], list[str]]:
        python = tmp_path / "python"
        python.write_text(f'#!/usr/bin/env bash\nprintf "%s\\n" "$@" > {tmp_path}/arguments\n{program}\n')
        python.chmod(0o755)
        path = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
        kept = {name: value for name, value in os.environ.items() if name not in ("DATA", "ARMS", "SIZES", "MORE")}
        done = subprocess.run(
            ["bash", SCRIPT, *arguments], env={**kept, **path, **environment}, capture_output=True, text=True
        )
        return done, (tmp_path / "arguments").read_text().splitlines()

    return call


def test_it_stops_in_time_and_says_whether_it_is_done(decide):
    done, _ = decide("exit 0")
    assert (done.returncode, done.stdout) == (0, "done: runs/decide/decide.json\n")
    stopped, _ = decide("sleep 60", "0.01")
    assert stopped.returncode == 124 and stopped.stdout.endswith("everything is kept: call it again\n")
    failed, _ = decide("echo attnres: no >&2; exit 2")
    assert (failed.returncode, failed.stdout, failed.stderr) == (2, "", "attnres: no\n")


@pytest.mark.parametrize("given", [{}, {"DATA": "--data.dataset sympy", "ARMS": "residual block", "MORE": "--seed 3"}])
def test_attnres_understands_it(decide, given, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    _, (_, module, *arguments) = decide("exit 0", **given)
    planned = []
    monkeypatch.setattr("attnres.lab.scaling.run.open_corpus", lambda data: planned.append(data) or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        main(arguments)
    assert module == "attnres" and planned[0].dataset == ("sympy" if given else "torch")
    assert planned[0].tokenizer == "bpe:8192"
