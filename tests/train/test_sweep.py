"""What a sweep says about a run that something ended from outside."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import pytest

from attnres.data.config import DataConfig
from attnres.errors import UsageError
from attnres.train import sweep, train
from attnres.train.sweep import Job, JobState, failures, run_jobs

DIES = "import os, signal; os.kill(os.getpid(), 9)"
CHATTY = (
    "import sys; [print('x' * 80, file=sys.stderr) for _ in range(4000)]; print('the end', file=sys.stderr); exit(1)"
)


def run_one(program: str, job: Job, monkeypatch) -> JobState:
    """The last state of a job whose worker is that program."""
    popen = subprocess.Popen
    monkeypatch.setattr(sweep.subprocess, "Popen", lambda _, **how: popen([sys.executable, "-c", program], **how))
    return run_jobs([job], 1)[0]


@pytest.mark.parametrize(
    ("kills", "why"),
    [([0, 0], "killed from outside (signal 9)"), ([0, 1], "because memory ran out: take fewer workers")],
)
def test_a_killed_worker_says_why_and_that_the_same_command_goes_on(kills, why, make_config, tmp_path, monkeypatch):
    counts = iter(kills)
    monkeypatch.setattr(sweep, "memory_kills", lambda: next(counts))
    state = run_one(DIES, Job("full, seed 0", make_config(), tmp_path / "run"), monkeypatch)
    assert state.status == "failed" and not state.diverged
    assert why in failures([state]) and failures([state]).endswith("the same command goes on with it")


def test_a_worker_that_writes_much_to_stderr_goes_on_and_its_last_line_is_its_error(make_config, tmp_path, monkeypatch):
    state = run_one(CHATTY, Job("full, seed 0", make_config(), tmp_path / "run"), monkeypatch)
    assert (state.status, state.error) == ("failed", "the end")


def test_what_every_run_lacks_is_refused_once_and_before_any_begins(make_config, tmp_path, monkeypatch):
    monkeypatch.setattr(sweep, "_launch", lambda *_: pytest.fail("a worker was started"))
    config = dataclasses.replace(make_config(), start_from="nowhere")
    jobs = [Job(f"seed {seed}", dataclasses.replace(config, seed=seed), tmp_path / f"seed-{seed}") for seed in range(2)]
    with pytest.raises(UsageError, match="nowhere: there is no such folder"):
        run_jobs(jobs, 1)
    assert not list(tmp_path.glob("seed-*"))


def test_runs_that_read_two_texts_under_one_name_are_refused(make_config, tmp_path):
    text = tmp_path / "text.txt"
    jobs = []
    for seed in range(2):
        text.write_text(f"{seed} it was a dark and stormy night, " * 200)
        config = dataclasses.replace(make_config(steps=1), seed=seed, data=DataConfig(paths=(str(text),)))
        jobs.append(Job(f"seed {seed}", config, tmp_path / f"seed-{seed}"))
        train(config, jobs[-1].folder)
    assert [state.status for state in run_jobs(jobs[:1], 1)] == ["done"]
    with pytest.raises(
        UsageError, match=r"the text has changed between the runs .*seed-0, whose text has a hash .*seed-1, "
    ):
        run_jobs(jobs, 1)
