"""Many runs, as parallel one-thread worker processes.

Two torch processes with two threads each on two cores are 50 times slower than with one each, so every worker has one.
A sweep's only state is the run folders: the same call continues where it stopped.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from attnres.data import Corpus
from attnres.errors import UsageError
from attnres.train.folder import RunFolder
from attnres.train.jsonconfig import config_to_json
from attnres.train.runconfig import RunConfig
from attnres.train.worker import DIVERGED

POLL_SECONDS = 0.5
STOP_SECONDS = 60.0
"""How long an interrupted worker may take for its step and its checkpoint."""

TAIL = 4096
"""Bytes at a file's end in which its last line is looked for."""


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

    def refresh(self) -> None:
        """Read the newest complete training record."""
        record = _last_training_record(RunFolder(self.job.folder).metrics)
        if record is not None:
            self.step, self.loss = record["step"], record["loss"]


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
        if RunFolder(state.job.folder).summary() is not None:
            state.status = "done"
        state.refresh()
    waiting = [state for state in states if state.status != "done"]
    running: list[_Worker] = []
    with tempfile.TemporaryDirectory(prefix="attnres-sweep-") as scratch:
        try:
            while waiting or running:
                while waiting and len(running) < workers:
                    state = waiting.pop(0)
                    running.append(_launch(state, Path(scratch) / str(len(waiting))))
                    state.status = "running"
                time.sleep(POLL_SECONDS)
                for worker in list(running):
                    worker.state.refresh()
                    if worker.process.poll() is not None:
                        running.remove(worker)
                        _finish(worker)
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

    process: subprocess.Popen[bytes]
    state: JobState
    errors: Path
    """What it writes to stderr: a file, because a pipe that nobody reads meanwhile stops who fills it."""


def _launch(state: JobState, place: Path) -> _Worker:
    """Start a worker. place: of its files, without their suffix."""
    config, errors = place.with_suffix(".json"), place.with_suffix(".stderr")
    config.write_text(json.dumps(config_to_json(state.job.config)), encoding="utf-8")
    with errors.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "attnres.train.worker", str(state.job.folder), str(config), "--with-parent"],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,  # closing it stops the worker, and it closes when this process ends
            stdout=subprocess.DEVNULL,
            stderr=file,
            start_new_session=True,  # Ctrl-C reaches the workers from here, once, and not from the terminal too
        )
    return _Worker(process, state, errors)


def _finish(worker: _Worker) -> None:
    state, code = worker.state, worker.process.wait()
    if worker.process.stdin:
        worker.process.stdin.close()
    if code == 0:
        state.status = "done"
        return
    state.status, state.diverged = "failed", code == DIVERGED
    if code < 0:
        state.error = (
            f"its process was killed (signal {-code}), as where memory runs out: take fewer workers; "
            "the same command goes on with it"
        )
    else:
        lines = _tail(worker.errors).decode(errors="replace").strip().splitlines()
        state.error = lines[-1] if lines else f"the worker ended with code {code}"


def _stop(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        if process.stdin:
            process.stdin.close()
    deadline = time.monotonic() + STOP_SECONDS
    for process in processes:
        try:
            process.wait(timeout=max(0.1, deadline - time.monotonic()))
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            process.kill()
            process.wait()


def _tail(path: Path) -> bytes:
    """The last bytes of a file, which may begin in the middle of a line."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - TAIL))
        return file.read()


def _last_training_record(path: Path) -> dict | None:
    try:
        lines = _tail(path).split(b"\n")[:-1]  # what follows the last newline is still being written
    except OSError:
        return None
    for line in reversed(lines):
        try:
            record = json.loads(line)
        except ValueError:
            continue  # the tail began in the middle of this line
        if record.get("kind") == "train":
            return record
    return None


def failures(states: Sequence[JobState]) -> str:
    """One line for each failed job."""
    return "\n".join(f"{state.job.name}: {state.error}" for state in states if state.status == "failed")


def require_done(states: Sequence[JobState]) -> None:
    """Raise UsageError if no job is done."""
    if not any(state.status == "done" for state in states):
        raise UsageError(f"no run was finished: {failures(states).splitlines()[0]}")
