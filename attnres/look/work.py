"""One thread per model, in which all requests take turns.

A piece of work is a generator of messages, and between two of its messages the others have their turn: a long one
delays a short one by one step. Work that nobody waits for any more ends at its next site of depth.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator
from typing import Any

from attnres.errors import UsageError
from attnres.look.messages import Failure, Message

log = logging.getLogger(__name__)

Steps = Generator[Message | None, None, None]
"""What work is: messages, or None where it only lets others have a turn."""


class Abandoned(Exception):
    """Nobody waits for this work any more."""


class WorkItem:
    """One piece of work, as it sees itself: it can tell how far it is, and is told when to stop."""

    def __init__(self, deliver: Callable[[Message | None], None]) -> None:
        self.stopped = False
        self.deliver = deliver

    def say(self, message: Message) -> None:
        """Send a message from inside a step. Raises Abandoned where nobody waits any more."""
        self.check()
        self.deliver(message)

    def check(self) -> None:
        if self.stopped:
            raise Abandoned


class Worker:
    """The thread. It begins with the first piece of work and dies with the process."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._waiting: deque[tuple[WorkItem, Steps]] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    async def run(self, make: Callable[[WorkItem], Steps]) -> AsyncIterator[Message]:
        """Do a piece of work and yield its messages; leaving the iterator stops it."""
        loop, queue = asyncio.get_running_loop(), asyncio.Queue[Any]()

        def deliver(message: Message | None) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(queue.put_nowait, message)

        piece = WorkItem(deliver)
        with self._changed:
            self._waiting.append((piece, make(piece)))
            self._changed.notify()
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
                self._thread.start()
        try:
            while (message := await queue.get()) is not None:
                yield message
        finally:
            piece.stopped = True

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting)
                piece, steps = self._waiting.popleft()
            if self._step(piece, steps):
                with self._changed:
                    self._waiting.append((piece, steps))
            else:
                piece.deliver(None)

    def _step(self, piece: WorkItem, steps: Steps) -> bool:
        """Go on to the work's next message. Returns whether there is more to do."""
        try:
            piece.check()
            message = next(steps)
        except (StopIteration, Abandoned):
            steps.close()
            return False
        except UsageError as error:
            piece.deliver(Failure(str(error)))
            return False
        except Exception as error:  # one question that fails must not end the microscope
            log.exception("a question failed")
            memory = isinstance(error, MemoryError) or "allocate memory" in str(error)
            said = "there is not enough memory for this; take a shorter text" if memory else "it failed"
            piece.deliver(Failure(said if memory else f"{said} ({type(error).__name__}); the terminal says more"))
            return False
        if message is not None:
            piece.deliver(message)
        return True
