"""Many runs, as parallel one-thread worker processes.

Two torch processes with two threads each on two cores are 50 times slower than with one each, so every worker has one.
A sweep keeps nothing but the run folders: the same call again goes on where it stopped.
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
from attnres.train.config import RunConfig
from attnres.train.folder import RunFolder
from attnres.train.jsonconfig import config_to_json
from attnres.train.memory import memory_kills
from attnres.train.start import check_start
from attnres.train.trainer import choose_device
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
        UsageError: before anything is trained, a folder holds another configuration, or what the runs need is not here,
            or they would begin with other weights than those that are done; or runs of one text have read two, because
            its files changed meanwhile.
    """
    for job in jobs:
        RunFolder(job.folder).refuse_other(job.config)
    states = [JobState(job) for job in jobs]
    for state in states:
        if RunFolder(state.job.folder).summary() is not None:
            state.status = "done"
        state.refresh()
    _refuse_changes(states)
    _refuse_two_starts(states)
    waiting = [state for state in states if state.status != "done"]
    _check_needs([state.job.config for state in waiting])
    running: list[_Worker] = []
    kills = memory_kills()
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
                        _finish(worker, memory_ran_out=memory_kills() > kills)
                watch(states)
        finally:
            _stop([worker.process for worker in running])
    watch(states)
    _refuse_changes(states)
    return states


def _refuse_changes(states: Sequence[JobState]) -> None:
    """Raise UsageError where runs that are done had two texts under one name: each worker reads it when it starts."""
    first: dict[str, tuple[Path, str]] = {}
    for state in states:
        folder = state.job.folder
        record = RunFolder(folder).record() if state.status == "done" else None
        if record is None:
            continue
        other, text = first.setdefault(repr(state.job.config.data), (folder, record["corpus"]["sha256"]))
        if record["corpus"]["sha256"] != text:
            raise UsageError(
                f"the text has changed between the runs {other}, whose text has a hash that begins with {text:.8}, and "
                f"{folder}, {record['corpus']['sha256']:.8}; remove those of the old text, or restore it and remove "
                "those of the new, and repeat the command"
            )


def refuse_other_texts(jobs: Sequence[Job], corpus: Corpus) -> None:
    """Raise UsageError where a job's run was begun on another text: what is measured on this one is not of it."""
    for job in jobs:
        RunFolder(job.folder).refuse_other_text(corpus, "remove the runs of that text")


def _refuse_two_starts(states: Sequence[JobState]) -> None:
    """Raise UsageError where a run is to begin with other weights than one that is done, in one folder then and now."""
    waiting = {state.job.config.start_from for state in states if state.status != "done"}
    for state in states:
        if state.status == "done" and state.job.config.start_from in waiting:
            RunFolder(state.job.folder).refuse_other_start(state.job.config.start_from)


def _check_needs(configs: Sequence[RunConfig]) -> None:
    """Raise UsageError where a device is not here, or the runs cannot begin with the weights that they share.

    Starts of their own may be lacking, as where one of several earlier runs failed: the others go on.
    """
    for device in {config.device for config in configs}:
        choose_device(device)
    starts = {config.start_from for config in configs}
    if len(starts) == 1 and (start := starts.pop()):
        check_start([config.model for config in configs], start)


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


def _finish(worker: _Worker, memory_ran_out: bool) -> None:
    state, code = worker.state, worker.process.wait()
    if worker.process.stdin:
        worker.process.stdin.close()
    if code == 0:
        state.status = "done"
        return
    state.status, state.diverged = "failed", code == DIVERGED
    if code < 0:
        why = "because memory ran out: take fewer workers" if memory_ran_out else "from outside"
        state.error = f"its process was killed {why} (signal {-code}); the same command goes on with it"
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
