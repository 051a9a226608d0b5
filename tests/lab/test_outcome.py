"""How a run of a sweep is recorded."""

from __future__ import annotations

import dataclasses
import json
import shutil

import pytest

from attnres.lab.engine import ended
from attnres.lab.runs import measured
from attnres.train.folder import RunFolder
from attnres.train.sweep import JobState
from tests.lab.machine import job_of


@pytest.fixture
def finished(sweep, tmp_path):
    """A copy of a finished run, and how it ended."""
    planned = dataclasses.replace(sweep.planned[0], folder=tmp_path / "run")
    shutil.copytree(sweep.planned[0].folder, tmp_path / "run")
    return planned, JobState(job_of(planned), status="done")


def edit(path, change):
    record = json.loads(path.read_text())
    change(record)
    path.write_text(json.dumps(record))


def test_losses_are_per_byte(finished):
    planned, state = finished
    folder = planned.folder
    per_token = ended(planned, state)
    edit(folder / "config.json", lambda record: record["corpus"].update(bytes_per_token=4.0))
    per_byte = ended(planned, state)
    assert per_token.loss == measured((RunFolder(folder).summary() or {})["validation_loss"])
    assert per_byte.loss == pytest.approx(per_token.loss / 4, rel=1e-6)
    assert [loss for _, loss in per_byte.curve] == pytest.approx([loss / 4 for _, loss in per_token.curve], rel=1e-6)


def test_a_run_that_ends_no_lower_than_it_began_has_diverged(finished, monkeypatch):
    planned, state = finished
    folder = planned.folder
    assert ended(planned, state).status == "done"
    summary = RunFolder(folder).summary() or {}
    monkeypatch.setattr(RunFolder, "summary", lambda self: {**summary, "validation_loss": 99.0})
    diverged = ended(planned, state)
    assert (diverged.status, diverged.loss) == ("diverged", 99.0)


def test_a_run_that_stopped_says_why(finished):
    planned, state = finished
    state.status, state.error = "failed", "no space left"
    failed = ended(planned, state)
    assert (failed.status, failed.error) == ("failed", "no space left")
    state.diverged = True
    assert ended(planned, state).status == "diverged"
