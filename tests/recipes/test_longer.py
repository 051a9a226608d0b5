"""recipes/ladder/longer.py: finished runs go on to more steps."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest

from attnres.model import TransformerConfig
from attnres.train import RunConfig, read_metrics, train

LONGER = Path(__file__).parents[2] / "recipes" / "ladder" / "longer.py"


@pytest.fixture
def finished(tmp_path) -> Path:
    (tmp_path / "text.py").write_text("def read(path):\n    return open(path).read()\n" * 200)
    model = TransformerConfig(vocab_size=256, dim=16, layers=1, heads=1, context=16)
    data = dataclasses.replace(RunConfig().data, paths=(str(tmp_path / "text.py"),))
    every_step = {"evaluate_every": 1, "save_every": 1, "keep": 1}
    train(
        RunConfig(model=model, data=data, steps=10, batch_size=1, validation_tokens=64, **every_step), tmp_path / "run"
    )
    return tmp_path / "run"


def longer(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, LONGER, *map(str, arguments)], capture_output=True, text=True)


def test_a_run_goes_on_and_is_not_trained_twice(finished):
    first, again = longer(20, finished), longer(20, finished)
    assert first.returncode == again.returncode == 0, first.stderr + again.stderr
    assert "a run of 10 steps goes on to 20 from step 8, its last checkpoint" in first.stdout
    assert first.stdout.splitlines()[-1] == again.stdout.splitlines()[-1]
    evaluated = [record["step"] for record in read_metrics(finished / "metrics.jsonl") if record["kind"] == "eval"]
    assert evaluated == [*range(9), *range(10, 21, 2)]


def test_what_cannot_go_on_is_refused_in_one_line(finished, tmp_path):
    for arguments in ((), ("many", finished)):
        assert longer(*arguments).stderr.startswith("usage: ")
    for steps, folder in ((5, finished), (20, tmp_path / "nowhere")):
        refused = longer(steps, folder)
        assert refused.returncode == 1 and refused.stderr.startswith("attnres: ") and refused.stderr.count("\n") == 1
