"""What a sweep says about a run that something ended from outside."""

from __future__ import annotations

import os
import signal

from attnres.train import sweep
from attnres.train.sweep import Job, failures, run_jobs


def die(job, place, says) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_killed_worker_says_so_and_that_the_same_command_goes_on(make_config, tmp_path, monkeypatch):
    monkeypatch.setattr(sweep, "_work", die)
    (state,) = run_jobs([Job("full, seed 0", make_config(), tmp_path / "run")], 1)
    assert state.status == "failed" and not state.diverged
    assert "(exit code -9)" in failures([state]) and failures([state]).endswith("the same command goes on with it")


def test_jobs_are_done_or_say_why_not(make_config, tmp_path):
    """In processes of their own; one that fails stops no other."""
    rates = {"bad": {"lr": 1e30, "adamw_lr": 1e30}, "good": {}}
    jobs = [Job(name, make_config(steps=4, optimizer=rate), tmp_path / name) for name, rate in rates.items()]
    bad, good = run_jobs(jobs, 2)
    assert (good.status, good.step, good.diverged) == ("done", 4, False) and good.loss
    assert bad.status == "failed" and bad.diverged and "lower learning rate" in bad.error
