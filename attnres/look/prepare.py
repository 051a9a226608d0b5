"""A pair of runs to look at, trained while the page shows the progress."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from attnres.errors import UsageError
from attnres.look.messages import Progress
from attnres.look.subject import RunSubject, Subject
from attnres.train import RunConfig
from attnres.train.sweep import Job, JobState, require_done, run_jobs
from attnres.train.workers import default_workers

POLL_SECONDS = 0.3

PAIR = ("block", "residual")
"""The first is what the page shows first: in a plain residual all weights are ones."""
PAIR_FOLDER = Path("runs") / "look"


def pair_of(config: RunConfig) -> list[Job]:
    """The runs of PAIR, with checkpoints close enough to walk through the training."""
    config = dataclasses.replace(config, save_every=20, keep=8)
    models = {name: dataclasses.replace(config.model, connection=name) for name in PAIR}
    return [Job(name, dataclasses.replace(config, model=models[name]), PAIR_FOLDER / name) for name in PAIR]


class Preparation:
    """Trains jobs in a thread, begun when the page first asks; runs that are done are taken as they are."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self.jobs = list(jobs)
        self.subjects: list[Subject] = []
        self._progress = Progress("training", 0, sum(job.config.steps for job in self.jobs))
        self._error: UsageError | None = None
        self._thread = threading.Thread()
        self._stopping = False

    def begin(self) -> None:
        """Train, unless it has begun; what failed, as where another process was at it, is tried again."""
        if not (self.subjects or self._thread.is_alive()):
            self._error, self._thread = None, threading.Thread(target=self._train, name="training", daemon=True)
            self._thread.start()

    def stop(self) -> bool:
        """Let the workers save what they have and end. Returns whether there was still something to do."""
        self._stopping = True
        unfinished = self._thread.is_alive()
        if unfinished:
            self._thread.join()
        return unfinished

    async def follow(self) -> AsyncIterator[Progress]:
        """How far it is, until it is done. Raises UsageError where it failed."""
        self.begin()
        while self._thread.is_alive():
            yield self._progress
            await asyncio.sleep(POLL_SECONDS)
        if self._error is not None:
            raise self._error

    def _train(self) -> None:
        try:
            require_done(run_jobs(self.jobs, default_workers(), self._watch))
            self.subjects = [RunSubject(job.folder, job.name) for job in self.jobs]
        except InterruptedError:
            pass
        except UsageError as error:
            self._error = error

    def _watch(self, states: list[JobState]) -> None:
        if self._stopping:
            raise InterruptedError
        done = sum(state.job.config.steps if state.status == "done" else state.step for state in states)
        self._progress = Progress("training steps", done, self._progress.total)
