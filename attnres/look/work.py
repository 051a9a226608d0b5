"""One thread per model, in which all requests take turns.

A piece of work is a generator of messages, and between two of its messages the others have their turn: a long one
delays a short one by one step. Work that nobody waits for any more ends at its next site of depth.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from attnres.errors import UsageError
from attnres.look.messages import Failure, Message, Progress

log = logging.getLogger(__name__)

PROGRESS_SECONDS = 0.1

Steps = Generator[Message | None, None, None]
"""What work is: messages, or None where it only lets others have a turn."""

END = object()


class Abandoned(Exception):
    """Nobody waits for this work any more."""


class WorkItem:
    """One piece of work, as it sees itself: it says how far it is, and is told when to stop."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.stopped = False
        self.progress: Progress | None = None

    def check(self) -> None:
        if self.stopped or self.worker.closed:
            raise Abandoned


class Worker:
    """The thread of a model."""

    def __init__(self, name: str) -> None:
        self.closed = False
        self._thread = ThreadPoolExecutor(1, name)

    async def run(self, make: Callable[[WorkItem], Steps]) -> AsyncIterator[Message]:
        """Do a piece of work and yield its messages; leaving the iterator stops it."""
        piece, told = WorkItem(self), None
        steps = make(piece)
        try:
            while True:  # the thread takes steps in the order in which they are asked for
                step = asyncio.get_running_loop().run_in_executor(self._thread, _step, piece, steps)
                while not step.done():
                    await asyncio.wait([step], timeout=PROGRESS_SECONDS)
                    if piece.progress is not told and not step.done():
                        told = piece.progress
                        assert told is not None
                        yield told
                message: Any = await step
                if message is END:
                    return
                if message is not None:
                    yield message
        finally:
            piece.stopped = True


def _step(piece: WorkItem, steps: Steps) -> object:
    """Go on to the work's next message; END when there is none."""
    try:
        piece.check()
        return next(steps, END)
    except Abandoned:
        return END
    except UsageError as error:
        return Failure(str(error))
    except Exception as error:  # one question that fails must not end the microscope
        log.exception("a question failed")
        if isinstance(error, MemoryError) or "allocate memory" in str(error):
            return Failure("there is not enough memory for this; take a shorter text")
        return Failure(f"it failed ({type(error).__name__}); the terminal says more")
