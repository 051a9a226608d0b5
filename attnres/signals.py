"""The signals that ask a program to stop, and the exit codes that shells know them by."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

STOPS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
"""Ctrl-C, a scheduler's, a closed terminal's; Windows has no such."""


class Stopped(KeyboardInterrupt):
    """What a signal of STOPS raises: whatever cleans up behind Ctrl-C does behind all of them."""

    def __init__(self, message: str = "", number: int = signal.SIGINT) -> None:
        super().__init__(message)
        self.number = number


def exit_code(stop: KeyboardInterrupt) -> int:
    """Return 128 + the signal's number, as shells count: 130 for Ctrl-C, 143 for SIGTERM."""
    return 128 + getattr(stop, "number", signal.SIGINT)


def in_words(number: int) -> str:
    """Say in a message what stopped the program."""
    return "interrupted" if number == signal.SIGINT else f"stopped by {signal.Signals(number).name}"


@contextmanager
def heard(hear: Callable[[int], object], numbers: Iterable[int] = STOPS) -> Iterator[None]:
    """While the block runs in the main thread, which alone hears signals, call `hear` with the number of each.

    A SIGHUP that is ignored stays so: to go on without a terminal is what nohup is for.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in numbers}
    if before.get(getattr(signal, "SIGHUP", 0)) == signal.SIG_IGN:
        del before[signal.SIGHUP]
    process = os.getpid()

    def handle(number: int, frame: object) -> None:
        if os.getpid() == process:
            hear(number)
        else:  # a fork, such as a library's worker, which its parent ends by a signal
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    for number in before:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
