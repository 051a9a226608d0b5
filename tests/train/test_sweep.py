"""What a sweep says about a run that something ended from outside."""

from __future__ import annotations

import subprocess
import sys

from attnres.train import sweep
from attnres.train.sweep import Job, JobState, failures, run_jobs

DIES = "import os, signal; os.kill(os.getpid(), 9)"


def run_one(program: str, job: Job, monkeypatch) -> JobState:
    """The last state of a job whose worker is that program."""
    popen = subprocess.Popen
    monkeypatch.setattr(sweep.subprocess, "Popen", lambda _, **how: popen([sys.executable, "-c", program], **how))
    return run_jobs([job], 1)[0]


def test_a_killed_worker_says_so_and_that_the_same_command_goes_on(make_config, tmp_path, monkeypatch):
    state = run_one(DIES, Job("full, seed 0", make_config(), tmp_path / "run"), monkeypatch)
    assert state.status == "failed" and not state.diverged
    assert "(signal 9)" in failures([state]) and failures([state]).endswith("the same command goes on with it")
