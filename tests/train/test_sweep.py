"""What a sweep says about a run that something ended from outside."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import pytest
import torch

from attnres.errors import UsageError
from attnres.train import sweep
from attnres.train.sweep import Job, failures, run_jobs

DIES = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"


@pytest.mark.parametrize(
    ("kills", "why"),
    [([0, 0], "killed from outside (SIGKILL)"), ([0, 1], "because memory ran out: take fewer workers")],
)
def test_a_killed_worker_says_why_and_that_the_same_command_goes_on(kills, why, make_config, tmp_path, monkeypatch):
    def launch(*_) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        return subprocess.Popen([sys.executable, "-c", DIES], stdin=pipe, stderr=pipe, text=True)

    counts = iter(kills)
    monkeypatch.setattr(sweep, "_launch", launch)
    monkeypatch.setattr(sweep, "memory_kills", lambda: next(counts))
    (state,) = run_jobs([Job("full, seed 0", make_config(), tmp_path / "run")], 1)
    assert state.status == "failed" and not state.diverged
    assert why in failures([state]) and failures([state]).endswith("the same command goes on with it")


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"start_from": "nowhere"}, "nowhere: there is no such folder"),
        pytest.param(
            {"device": "cuda"},
            "torch finds no GPU here",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU"),
        ),
    ],
)
def test_what_every_run_lacks_is_refused_once_and_before_any_begins(fields, why, make_config, tmp_path, monkeypatch):
    monkeypatch.setattr(sweep, "_launch", lambda *_: pytest.fail("a worker was started"))
    jobs = [
        Job(f"seed {seed}", dataclasses.replace(make_config(), seed=seed, **fields), tmp_path / f"seed-{seed}")
        for seed in range(2)
    ]
    with pytest.raises(UsageError, match=why):
        run_jobs(jobs, 1)
    assert not list(tmp_path.glob("seed-*"))
