"""Processes of a run: forked where everything is imported already, each with the environment of a launcher."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from attnres.cli import main as attnres_command
from tests.parallel.ranks import CONTEXT

LIMIT = 250.0
"""Seconds that end what hangs."""


class Processes:
    """One process per function, started together; the first is rank 0. What each says is in a file of its own."""

    def __init__(self, folder: Path, *functions: Callable[[], Any], size: int | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        size = size or len(functions)
        self.outputs = [folder / f"said-{rank}" for rank in range(len(functions))]
        where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(size)}
        environments = [{**where, "RANK": str(rank)} if size > 1 else {} for rank in range(len(functions))]
        self.processes = [
            CONTEXT.Process(target=_begin, args=(function, environment, output))
            for function, environment, output in zip(functions, environments, self.outputs, strict=True)
        ]
        for process in self.processes:
            process.start()

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.kill()
            process.join()

    def send(self, number: int) -> None:
        """A signal to all of them, as a terminal's Ctrl-C."""
        for process in self.processes:
            os.kill(process.pid, number)

    def end(self) -> list[int]:
        """Wait for all; their exit codes, or minus the signals that killed them."""
        deadline = time.monotonic() + LIMIT
        for process in self.processes:
            process.join(max(0.0, deadline - time.monotonic()))
            assert process.exitcode is not None, "a process did not end"
        return [process.exitcode for process in self.processes]

    @property
    def said(self) -> list[str]:
        return [output.read_text(encoding="utf-8") for output in self.outputs]

    @property
    def errors(self) -> list[str]:
        """The lines in which the command says what is wrong, of all processes."""
        return [line for text in self.said for line in text.splitlines() if "attnres: " in line]


class Command:
    """`attnres ARGUMENTS`, to be run in one of `Processes`, where asked for in another folder."""

    def __init__(self, *arguments: object, folder: Path | None = None) -> None:
        self.arguments = [str(argument) for argument in arguments]
        self.folder = folder

    def __call__(self) -> int:
        if self.folder:
            os.chdir(self.folder)
        return attnres_command(self.arguments)


def wait_for(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _begin(function: Callable[[], Any], environment: dict[str, str], output: Path) -> None:
    with open(output, "w", encoding="utf-8") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
    os.environ.update(environment)
    # As a terminal would have them, whatever started the tests.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    torch.set_num_threads(1)
    code = function()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code or 0)
