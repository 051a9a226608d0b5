"""How a run of a sweep is recorded."""

from __future__ import annotations

from pathlib import Path

import pytest

from attnres.lab.engine import Planned, ended
from attnres.train import RunConfig
from attnres.train.folder import RunFolder
from attnres.train.sweep import JobState
from tests.lab.machine import job_of

LAST = {"validation_loss": 2.0, "step_seconds": 0.1, "peak_memory_bytes": 1}


@pytest.mark.parametrize(
    ("state", "last", "status", "loss"),
    [
        ({"status": "done"}, 2.0, "done", 0.5),
        ({"status": "done"}, 5.0, "diverged", 1.25),
        ({"status": "failed", "error": "no space left"}, None, "failed", None),
        ({"status": "failed", "error": "no space left", "diverged": True}, None, "diverged", None),
    ],
)
def test_losses_are_per_byte_and_a_run_that_ends_no_lower_than_it_began_has_diverged(
    state, last, status, loss, monkeypatch
):
    record = {"corpus": {"bytes_per_token": 4.0}, "versions": {"commit": "abc"}, "machine": {"gpu": None}}
    monkeypatch.setattr(RunFolder, "record", lambda _: record)
    monkeypatch.setattr(RunFolder, "evaluations", lambda _: [{"step": 0, "loss": 4.8}, {"step": 9, "loss": 2.0}])
    monkeypatch.setattr(RunFolder, "summary", lambda _: {**LAST, "validation_loss": last})
    planned = Planned("full", 0, RunConfig(), Path("run"))
    run = ended(planned, JobState(job_of(planned), **state))
    assert (run.status, run.error, run.commit) == (status, state.get("error", ""), "abc")
    assert [list(point) for point in run.curve] == [[0, 1.2], [9, 0.5]]
    assert loss is None or run.loss == loss
