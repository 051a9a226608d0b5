"""Many runs, as parallel one-thread worker processes.

Two torch processes with two threads each on two cores are 50 times slower than with one each, so every worker has one.
A sweep's only state is the run folders: the same call continues where it stopped.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch

from attnres.data import Corpus
from attnres.errors import UsageError, first_line
from attnres.train.folder import RunFolder
from attnres.train.loop import Diverged, train
from attnres.train.runconfig import RunConfig

POLL_SECONDS = 0.5
STOP_SECONDS = 60.0
"""How long an interrupted worker may take for its step and its checkpoint."""

PROCESSES: Any = multiprocessing.get_context("spawn")
"""Not forks: what a fork maps of torch's code anew as it runs would count as memory of the run."""


@dataclass(frozen=True)
class Job:
    """One run of the sweep."""

    name: str
    config: RunConfig
    folder: Path


@dataclass
class JobState:
    """Where a job stands."""

    job: Job
    step: int = 0
    loss: float | None = None
    """The latest training loss."""
    status: str = "waiting"
    """waiting, running, done or failed"""
    error: str = ""
    diverged: bool = False
    """Whether it failed because a number was not finite."""


def run_jobs(
    jobs: Sequence[Job], workers: int, watch: Callable[[list[JobState]], None] = lambda states: None
) -> list[JobState]:
    """Train every job that is not done, `workers` at a time and in the order given; return their last states.

    A failed run does not stop the others. Ctrl-C stops the workers, each of which saves first.

    Args:
        watch: called about twice a second with the states of all jobs.

    Raises:
        UsageError: a folder holds another configuration; nothing was trained.
    """
    for job in jobs:
        RunFolder(job.folder).refuse_other(job.config)
    states = [JobState(job) for job in jobs]
    for state in states:
        folder = RunFolder(state.job.folder)
        state.step = max((checkpoint.step for checkpoint in folder.checkpoints.all()), default=0)
        if folder.summary() is not None:
            state.status = "done"
    waiting = [state for state in states if state.status != "done"]
    running: list[_Worker] = []
    try:
        while waiting or running:
            while waiting and len(running) < workers:
                running.append(_launch(waiting.pop(0)))
            wait([worker.process.sentinel for worker in running], POLL_SECONDS)
            for worker in list(running):
                worker.look()
                if worker.state.status != "running":
                    running.remove(worker)
            watch(states)
    finally:
        _stop([worker.process for worker in running])
    watch(states)
    return states


def refuse_other_texts(jobs: Sequence[Job], corpus: Corpus) -> None:
    """Raise UsageError where a job's run was begun on another text: what is measured on this one is not of it."""
    for job in jobs:
        RunFolder(job.folder).refuse_other_text(corpus, "remove the runs of that text")


@dataclass(eq=False)
class _Worker:
    """The process that trains a job."""

    process: Any
    state: JobState
    place: Any
    """The step and the loss of the last one, in memory that both processes share."""
    outcome: Connection
    """What it says where it does not reach the end: its error, and whether it diverged."""

    def look(self) -> None:
        """See how far it is, and how it ended."""
        state, code, (step, loss) = self.state, self.process.exitcode, self.place
        state.step, state.loss = int(step), None if math.isnan(loss) else loss
        if code == 0:
            state.status = "done"
        elif code is not None:
            state.status = "failed"
            try:
                state.error, state.diverged = self.outcome.recv()
            except EOFError:
                state.error = (
                    f"its process was killed (exit code {code}), as where memory runs out: take fewer workers; "
                    "the same command goes on with it"
                )


def _launch(state: JobState) -> _Worker:
    place, (outcome, says) = PROCESSES.RawArray("d", [state.step, math.nan]), PROCESSES.Pipe(duplex=False)
    process = PROCESSES.Process(target=_work, args=(state.job, place, says))
    resource_tracker.ensure_running()  # to start it would let the signal through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        process.start()  # a terminal's Ctrl-C reaches the command alone, which stops its workers
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    says.close()
    state.status = "running"
    return _Worker(process, state, place, outcome)


def _work(job: Job, place: Any, says: Connection) -> None:
    """Train, in a process of its own, with one thread and no output."""
    threading.Thread(target=_stop_with_parent, daemon=True).start()
    nothing = os.open(os.devnull, os.O_WRONLY)
    for output in (1, 2):
        os.dup2(nothing, output)
    torch.set_num_threads(1)

    def listen(event: dict[str, Any]) -> None:
        if event["kind"] == "train":
            place[:] = event["step"], event["loss"]

    try:
        train(job.config, job.folder, listen)
    except BaseException as error:
        says.send((first_line(error), isinstance(error, Diverged)))
        sys.exit(1)


def _stop_with_parent() -> None:
    """However the process that started this one went."""
    parent = multiprocessing.parent_process()
    assert parent
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)


def _stop(processes: Sequence[Any]) -> None:
    for process in processes:
        process.terminate()  # the run is saved
    deadline = time.monotonic() + STOP_SECONDS
    for process in processes:
        with suppress(KeyboardInterrupt):
            process.join(max(0.1, deadline - time.monotonic()))
        process.kill()
        process.join()


def failures(states: Sequence[JobState]) -> str:
    """One line for each failed job."""
    return "\n".join(f"{state.job.name}: {state.error}" for state in states if state.status == "failed")


def require_done(states: Sequence[JobState]) -> None:
    """Raise UsageError if no job is done."""
    if not any(state.status == "done" for state in states):
        raise UsageError(f"no run was finished: {failures(states).splitlines()[0]}")
