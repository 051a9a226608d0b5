"""How a run of a sweep is recorded."""

from __future__ import annotations

import json
import shutil

import pytest

from attnres.lab.outcome import outcome_of
from attnres.train.folder import RunFolder
from attnres.train.sweep import Job, JobState


@pytest.fixture
def finished(sweep, tmp_path):
    """A copy of a finished run, and how it ended."""
    job = sweep.planned[0].job
    shutil.copytree(job.folder, tmp_path / "run")
    return tmp_path / "run", JobState(Job(job.name, job.config, tmp_path / "run"), status="done")


def edit(path, change):
    record = json.loads(path.read_text())
    change(record)
    path.write_text(json.dumps(record))


def test_losses_are_per_byte(finished):
    folder, state = finished
    per_token = outcome_of(folder, state)
    edit(folder / "config.json", lambda record: record["corpus"].update(bytes_per_token=4.0))
    per_byte = outcome_of(folder, state)
    assert per_token.loss == (RunFolder(folder).summary() or {})["validation_loss"]
    assert per_byte.loss == per_token.loss / 4
    assert per_byte.curve == tuple((step, loss / 4) for step, loss in per_token.curve)


def test_a_run_says_what_it_was_trained_on(finished):
    folder, state = finished
    assert outcome_of(folder, state).gpu is None
    edit(folder / "config.json", lambda record: record["machine"].update(gpu="NVIDIA H200"))
    assert outcome_of(folder, state).gpu == "NVIDIA H200"


def test_a_run_that_ends_no_lower_than_it_began_has_diverged(finished, monkeypatch):
    folder, state = finished
    assert outcome_of(folder, state).status == "done"
    summary = RunFolder(folder).summary() or {}
    monkeypatch.setattr(RunFolder, "summary", lambda self: {**summary, "validation_loss": 99.0})
    diverged = outcome_of(folder, state)
    assert (diverged.status, diverged.loss) == ("diverged", 99.0)


def test_a_run_that_stopped_says_why(finished):
    folder, state = finished
    state.status, state.error = "failed", "no space left"
    failed = outcome_of(folder, state)
    assert (failed.status, failed.error) == ("failed", "no space left")
    state.diverged = True
    assert outcome_of(folder, state).status == "diverged"
