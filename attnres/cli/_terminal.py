"""What the lab's experiments print while they run, on a terminal or into a file."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.text import Text

from attnres.cli._tables import print_error, print_line
from attnres.signals import exit_code
from attnres.texttable import visible

PLAIN_SECONDS = 20.0
"""Between lines where the output is no terminal."""


def stopped(stop: KeyboardInterrupt, record: Path | None = None) -> int:
    """Say how to go on after a signal, and return the exit code. record: is written already, and not drawn."""
    left = (
        f"attnres report draws what is measured in {record}"
        if record
        else "the same command goes on from what is saved"
    )
    print_error(f"stopped; {left}")
    return exit_code(stop)


@contextmanager
def working(console: Console, what: str) -> Iterator[Callable[[str], None]]:
    """Say what takes a while. Yields what says how far it is, to be called at will.

    A spinner, or where the output is no terminal a line at the start and then one now and then.
    """
    if console.is_terminal:
        with console.status(_plain(what)) as status:
            yield lambda line: status.update(_plain(line))
        return
    told = time.monotonic()

    def tell(line: str) -> None:
        nonlocal told
        if time.monotonic() - told > PLAIN_SECONDS:
            told = time.monotonic()
            print_line(console, line)

    print_line(console, f"{what} ..")
    yield tell


def _plain(line: str) -> Text:
    return Text(visible(line))


class Terminal:
    """`attnres.lab.engine.ProgressDisplay` on a console."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.shown: Progress | None = None
        self.told = time.monotonic()
        self.began: tuple[float, float] | None = None
        """(when, how far) of the first part that was seen done: before it come imports and a first compilation."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.shown is not None:
            self.shown.stop()
            self.shown = None

    def __call__(self, done: float, total: float, what: str) -> None:
        """Show how far it is: a bar, or where the output is no terminal a line now and then."""
        now = time.monotonic()
        if self.began is not None and done < self.began[1]:
            self.began = None  # something else begins
        if self.began is None and done:
            self.began = now, done
        left = self._time_left(now, done, total)
        share = min(1.0, done / total) if total > 0 else 1.0
        if self.console.is_terminal:
            if self.shown is None:
                columns = (
                    TextColumn("{task.description}", markup=False),
                    BarColumn(),
                    TextColumn("{task.fields[left]}"),
                )
                self.shown = Progress(*columns, console=self.console)
                self.shown.add_task("", total=1.0, left="")
                self.shown.start()
            self.shown.update(self.shown.task_ids[0], completed=share, description=visible(what), left=left)
        elif now - self.told > PLAIN_SECONDS:
            self.told = now
            self.say(f"{what}, {share:.0%}" + (f", {left}" if left else ""))

    def _time_left(self, now: float, done: float, total: float) -> str:
        if done >= total:
            return ""
        if self.began is None or done <= self.began[1]:
            return "starting"
        left = (now - self.began[0]) / (done - self.began[1]) * (total - done)
        return f"about {left / 60:.0f} min left" if left > 90 else f"about {left:.0f} s left"

    def say(self, line: str) -> None:
        print_line(self.console, line)

    def during(self, what: str) -> AbstractContextManager[Callable[[str], object]]:
        self.__exit__()  # a terminal shows one thing that moves at a time
        return working(self.console, what)
