"""Recipes that are shell scripts run here with a stand-in for Python."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

RECIPES = Path(__file__).parents[2] / "recipes"
OPTIONS = ("ARMS", "DATA", "MORE", "RUNS", "SEEDS", "SIZES")
"""What they take from the environment."""


@pytest.fixture
def run_script(tmp_path):
    """Run a script with a program as `python`; return the process and the arguments of every call of `python`."""

    def call(
        name: str, *arguments: str, program: str = "exit 0", **environment: str
    ) -> tuple[subprocess.CompletedProcess[str], list[list[str]]]:
        python, calls = tmp_path / "python", tmp_path / "calls"
        # one call to a line, its arguments apart by what no argument has
        python.write_text(f"#!/usr/bin/env bash\n(IFS=$'\\x1f'; echo \"$*\") >> {calls}\n{program}\n")
        python.chmod(0o755)
        calls.write_text("")
        kept = {name: value for name, value in os.environ.items() if name not in OPTIONS}
        path = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
        done = subprocess.run(
            ["bash", RECIPES / name, *arguments], env={**kept, **path, **environment}, capture_output=True, text=True
        )
        return done, [line.split("\x1f") for line in calls.read_text().splitlines()]

    return call
