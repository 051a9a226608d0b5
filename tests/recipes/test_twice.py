"""recipes/ladder/twice.py: runs go on to twice their steps."""

from __future__ import annotations

import dataclasses
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from attnres.model import TransformerConfig
from attnres.train import RunConfig, read_metrics, train
from tests.train.conftest import weights

TWICE = Path(__file__).parents[2] / "recipes" / "ladder" / "twice.py"


@pytest.fixture
def config(tmp_path) -> RunConfig:
    (tmp_path / "text.py").write_text("def read(path):\n    return open(path).read()\n" * 200)
    model = TransformerConfig(vocab_size=256, dim=16, layers=1, heads=1, context=16)
    data = dataclasses.replace(RunConfig().data, paths=(str(tmp_path / "text.py"),))
    every_step = {"evaluate_every": 1, "save_every": 1, "keep": 1}
    return RunConfig(model=model, data=data, steps=10, batch_size=1, validation_tokens=64, **every_step)


def test_a_run_goes_on_from_nothing_from_its_end_and_from_between_to_the_same_bits(config, tmp_path):
    twice = runpy.run_path(str(TWICE))["twice"]
    train(config, tmp_path / "finished")

    def stop(event):
        if event["kind"] == "saved":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path / "stopped", stop)
    for name in ("nothing", "finished", "stopped"):
        first, again = twice(config, tmp_path / name), twice(config, tmp_path / name)
        assert first == again
        assert weights(tmp_path / name, 20) == weights(tmp_path / "nothing", 20)
        metrics = read_metrics(tmp_path / name / "metrics.jsonl")
        evaluated = [record["step"] for record in metrics if record["kind"] == "eval"]
        assert evaluated == [*range(9), *range(10, 21, 2)], "the rate falls from step 8 of 10"


def test_the_ladders_runs_are_trained_seed_by_seed_but_for_those_of_the_record(monkeypatch, tmp_path, capsys):
    run = runpy.run_path(str(TWICE))
    trained = []
    monkeypatch.setitem(run["main"].__globals__, "twice", lambda config, folder: trained.append((config, folder)) or 1)
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    record = TWICE.parents[2] / "results" / "ladder-16-20.json"
    run["main"](tmp_path, tmp_path / "none.json", ["16x48", "16x64"])
    assert len(trained) == 42 and {config.optimizer.lr for config, _ in trained} == {0.01}
    assert {(config.model.dim, config.steps, config.batch_size) for config, _ in trained} == {
        (48, 2160, 8),
        (64, 3840, 8),
    }
    assert [config.seed for config, _ in trained] == 2 * [seed for seed in range(3) for _ in range(7)]
    assert trained[0][1] == tmp_path / "residual" / "16x48" / "lr-0.5" / "seed-0"
    trained.clear()
    run["main"](tmp_path, record, ["16x64"])
    assert not trained


def test_what_cannot_go_on_is_refused_in_one_line(tmp_path):
    def ran(*arguments: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, TWICE, *map(str, arguments)], capture_output=True, text=True)

    assert "python recipes/ladder/twice.py" in ran().stderr
    refused = ran(tmp_path, tmp_path / "none.json", "16x63")
    assert refused.returncode == 1 and refused.stderr.startswith("attnres: size '16x63@10'")
    assert refused.stderr.count("\n") == 1
