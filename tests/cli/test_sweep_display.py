"""The time that a sweep says is left."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from attnres.cli import _sweep_display
from attnres.lab.ahead import NOTHING, Bounds
from attnres.train import RunConfig
from attnres.train.sweep import Job, JobState


@pytest.mark.parametrize(
    ("later", "said"),
    [
        (NOTHING, "about 30 s left"),
        (Bounds(20, 20), "about 90 s left with the runs behind these"),
        (Bounds(0, 20), "about 30 to 90 s left with the runs behind these"),
        (Bounds(40, 100), "about 2 to 6 min left with the runs behind these"),  # 150 to 330 s
    ],
)
def test_the_time_left_counts_what_comes_later(later, said, monkeypatch):
    """At half of ten steps of cost 2, which take 6 s each; the 12 s until the first one are no measure."""
    assert lines([(0.0, 0), (12.0, 1), (36.0, 5)], monkeypatch, later) == [f"5 of 10 steps, {said}"]


def test_a_killed_run_that_falls_back_to_its_checkpoint_takes_no_time_back(monkeypatch):
    """It had logged six steps and goes on from its second: two more took 30 s, so the six that are left take 90."""
    assert lines([(0.0, 6), (10.0, 2), (30.0, 4)], monkeypatch) == ["4 of 10 steps, about 90 s left"]


def lines(seen, monkeypatch, later=NOTHING):
    """What is said of one run of ten steps that is at these steps at these seconds."""
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(_sweep_display, "time", SimpleNamespace(monotonic=lambda: clock.now))
    file, job = io.StringIO(), Job("a", RunConfig(steps=10), Path("a"))
    display = _sweep_display.SweepDisplay(Console(file=file), [job], {"a": "a"}, lambda job: 2.0, later)
    for clock.now, step in seen:
        display.watch([JobState(job, step, status="running")])
    return file.getvalue().splitlines()
