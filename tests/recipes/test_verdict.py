"""The verdict's script: a shell script around attnres ablate, here with a stand-in for Python."""

from __future__ import annotations

import itertools
import os
import subprocess
from pathlib import Path

import pytest

from attnres.cli import main

SCRIPT = Path(__file__).parents[2] / "recipes" / "verdict.sh"
SETTINGS = ("shallow-short", "shallow-long", "deep-short", "deep-long")


@pytest.fixture
def verdict(tmp_path):
    """Run the script; return the process and the arguments of every call of `python`."""

    def call(*arguments: str, **environment: str) -> tuple[subprocess.CompletedProcess[str], list[list[str]]]:
        python, calls = tmp_path / "python", tmp_path / "calls"
        python.write_text(f'#!/usr/bin/env bash\necho "$@" >> {calls}\n')
        python.chmod(0o755)
        calls.write_text("")
        path = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
        kept = {name: value for name, value in os.environ.items() if name not in ("EQUAL", "RUNS", "WORKERS")}
        done = subprocess.run(
            ["bash", SCRIPT, *arguments], env={**kept, **path, **environment}, capture_output=True, text=True
        )
        return done, [line.split() for line in calls.read_text().splitlines()]

    return call


def test_arms_come_one_after_the_other_and_all_of_a_setting_into_one_record(verdict):
    done, calls = verdict("deep-short")
    assert done.returncode == 0
    arms = [call[3 : call.index("--data.dataset")] for call in calls]
    assert arms[0] == ["residual", "interlayer"] and all(
        after[:-1] == before for before, after in itertools.pairwise(arms)
    )
    assert len(arms[-1]) == 13 and "rms-block:block_size=12" in arms[-1]
    assert {call[call.index("--record") + 1] for call in calls} == {"results/verdict-deep-short.json"}


def test_the_long_settings_want_their_arms(verdict):
    done, calls = verdict("deep-long")
    assert done.returncode == 2 and calls == [] and "give its arms, residual first" in done.stderr
    done, calls = verdict("deeper")
    assert done.returncode == 2 and calls == [] and done.stderr.startswith("deeper: the settings are")


@pytest.mark.parametrize("setting", SETTINGS)
def test_attnres_understands_it(verdict, setting, monkeypatch, tmp_path):
    _, (call,) = verdict(setting, "residual", "interlayer", EQUAL="seconds", WORKERS="2", RUNS=str(tmp_path / "runs"))
    planned = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("attnres.lab.ablation.run.open_corpus", lambda data: planned.append(data) or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        main(call[2:])
    assert planned[0].dataset == "sympy"
    assert call[call.index("--record") + 1] == f"results/verdict-{setting}-seconds.json"
