"""recipes/ladder/at_once.py: runs in threads, each of which is the run that the trainer would have made."""

from __future__ import annotations

import dataclasses
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from attnres.train import loop, train
from attnres.train.folder import RunFolder
from attnres.train.sweep import Job
from tests.recipes.test_twice import config as config

ROOT = Path(__file__).parents[2]
AT_ONCE = ROOT / "recipes" / "ladder" / "at_once.py"
on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def at_once(config, folder: Path) -> list[float]:
    """What two rules on two seeds end with."""
    jobs = [
        Job(f"{rule} {seed}", rule_config(config, rule, seed), folder / rule / str(seed))
        for rule in ("residual", "block")
        for seed in (0, 1)
    ]
    return runpy.run_path(str(AT_ONCE))["train_at_once"](jobs)


def rule_config(config, rule: str, seed: int):
    return dataclasses.replace(config, model=dataclasses.replace(config.model, connection=rule), seed=seed)


def test_each_is_the_run_that_the_trainer_makes(config, tmp_path):
    config, ordinary = dataclasses.replace(config, device="cpu", batch_size=2), loop._trainer
    losses = at_once(config, tmp_path)
    assert loop._trainer is ordinary
    for rule in ("residual", "block"):
        for seed in (0, 1):
            one = rule_config(config, rule, seed)
            assert losses.pop(0) == train(one, tmp_path / "alone" / rule / str(seed))["validation_loss"]
            ours, alone = (
                RunFolder(path / rule / str(seed)).checkpoints.all()[-1] for path in (tmp_path, tmp_path / "alone")
            )
            for name, tensor in alone.model().items():
                assert torch.equal(ours.model()[name], tensor), name


@pytest.mark.gpu
@on_a_gpu
def test_replayed_graphs_learn_as_launches_do(config, tmp_path):
    config = dataclasses.replace(config, device="cuda", batch_size=2)
    losses = at_once(config, tmp_path)
    alone = [
        train(rule_config(config, rule, seed), tmp_path / "alone" / rule / str(seed))["validation_loss"]
        for rule in ("residual", "block")
        for seed in (0, 1)
    ]
    assert losses == pytest.approx(alone, rel=1e-4)


def test_the_runs_are_the_ladders_at_its_rates(tmp_path, monkeypatch):
    jobs_of = runpy.run_path(str(AT_ONCE))["jobs_of"]
    record = ROOT / "results" / "ladder-16.json"
    jobs = jobs_of(tmp_path, record, "16x80@10", ["0", "2"])
    assert len(jobs) == 14 and {job.config.seed for job in jobs} == {0, 2}
    assert {(job.config.steps, job.config.batch_size, job.config.optimizer.lr) for job in jobs} == {(6000, 8, 0.01)}
    assert jobs[0].folder == tmp_path / "residual" / "16x80" / "lr-0.5" / "seed-0"
    checks = jobs_of(tmp_path, record, "16x64@10", ["check"])
    assert {job.config.optimizer.lr for job in checks} == {0.005, 0.02} and {job.config.seed for job in checks} == {0}
    monkeypatch.setattr(RunFolder, "summary", lambda run: {} if run.path == checks[0].folder else None)
    assert jobs_of(tmp_path, record, "16x64@10", ["check"]) == checks[1:], "what is done is left out"


def test_what_cannot_be_is_refused_in_one_line(tmp_path):
    def ran(*arguments: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, AT_ONCE, *map(str, arguments)], capture_output=True, text=True)

    assert "python recipes/ladder/at_once.py" in ran().stderr
    refused = ran(tmp_path, ROOT / "results" / "ladder-16.json", "16x81", 0)
    assert refused.returncode == 1 and refused.stderr.startswith("attnres: size '16x81'")
    assert refused.stderr.count("\n") == 1
