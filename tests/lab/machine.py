"""A machine that trains nothing, for sweeps: runs have the losses that a test gives them."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from attnres.lab.engine import Planned
from attnres.lab.runs import RunResult
from attnres.train.folder import RunFolder
from attnres.train.sweep import Job, JobState

HEADER = {"versions": {}, "machine": {}, "corpus": {"sha256": "a" * 64}, "config": {"optimizer": {"decay": 0.25}}}


def job_of(one: Planned) -> Job:
    return Job(one.name, one.config, one.folder)


def parabola(one: Planned) -> float:
    """Lower with width, and lowest at the rate 1."""
    return 3 - 0.3 * math.log(one.config.model.dim) + 0.1 * math.log(one.rate) ** 2


@dataclass
class Machine:
    """It is also the progress of a sweep."""

    loss: Callable[[Planned], float] = parabola
    broken: str | None = None
    """Runs with this in their names fail."""
    stop_at: int | None = None
    """Stops as by Ctrl-C before the run of that number."""
    trained: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    told: list[tuple[float, float]] = field(default_factory=list)

    def say(self, line: str) -> None:
        self.said.append(line)

    def during(self, what: str):
        return nullcontext(self.say)

    def __call__(self, done: float, total: float, what: str) -> None:
        self.told.append((done, total))

    def run_jobs(self, jobs, workers, watch):
        states = [JobState(job) for job in jobs]
        watch(states)
        for state in states:
            if len(self.trained) == self.stop_at:
                raise KeyboardInterrupt
            self.trained.append(state.job.name)
            state.status = "failed" if self.broken and self.broken in state.job.name else "done"
            state.step, state.error = state.job.config.steps, "killed" if state.status == "failed" else ""
            watch(states)
        return states

    def ended(self, one: Planned, state: JobState) -> RunResult:
        if state.status != "done":
            return one.ended(status="failed", error=state.error)
        loss = round(self.loss(one), 6)
        return one.ended(status="done", loss=loss, step_seconds=0.1, curve=((0, 5.0), (one.config.steps, loss)))


@pytest.fixture
def machine(monkeypatch) -> Machine:
    made = Machine()
    monkeypatch.setattr("attnres.data.open_corpus", lambda _: SimpleNamespace(vocab_size=256, sha256="a" * 64))
    monkeypatch.setattr("attnres.data.check_length", lambda *_: None)
    monkeypatch.setattr("attnres.train.sweep.run_jobs", made.run_jobs)
    monkeypatch.setattr("attnres.train.sweep.refuse_other_texts", lambda *_: None)
    monkeypatch.setattr("attnres.lab.engine.ended", made.ended)
    monkeypatch.setattr(RunFolder, "record", lambda _: HEADER)
    monkeypatch.setattr("attnres.model.flops.training_flops", lambda model: 6.0 * model.layers * model.dim**2)
    return made
