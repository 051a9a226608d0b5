"""A command in a process of its own, forked where everything is imported already."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from attnres.cli import main
from tests.parallel.ranks import CONTEXT

LIMIT = 250.0
"""Seconds that end what hangs."""


class Command:
    """`attnres ARGUMENTS`, and what it says in a file."""

    def __init__(self, output: Path, *arguments: object) -> None:
        self.output = output
        self.process = CONTEXT.Process(target=_begin, args=(output, list(map(str, arguments))))
        self.process.start()

    def __enter__(self) -> Command:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.join()

    def send(self, number: int) -> None:
        os.kill(self.process.pid, number)

    def end(self) -> int:
        """Wait for its exit code, or minus the signal that killed it."""
        self.process.join(LIMIT)
        assert self.process.exitcode is not None, "it did not end"
        return self.process.exitcode

    @property
    def errors(self) -> list[str]:
        """The lines in which it says what is wrong."""
        return [line for line in self.output.read_text(encoding="utf-8").splitlines() if "attnres: " in line]


def wait_for(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _begin(output: Path, arguments: list[str]) -> None:
    with open(output, "w", encoding="utf-8") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
    # As a terminal would have it, whatever started the tests.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    torch.set_num_threads(1)
    code = main(arguments)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
