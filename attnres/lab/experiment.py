"""What an experiment is: from the options of its command to its section of the results page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from attnres.lab.ahead import NOTHING, Bounds
from attnres.texttable import TextTable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from attnres.train import RunConfig
    from attnres.train.sweep import Job, JobState


class Progress(Protocol):
    """What an experiment says while it runs, and how it has its jobs trained; the command line shows it."""

    def say(self, line: str) -> None: ...
    def log(self, line: str) -> None: ...
    def during(self, what: str) -> AbstractContextManager[object]: ...
    def bar(self, total: float) -> AbstractContextManager[Callable[[float, str], None]]: ...
    def train(
        self,
        jobs: Sequence[Job],
        labels: Sequence[str],
        workers: int,
        costs: Sequence[float] | None = None,
        later: Bounds = NOTHING,
        watch: Callable[[Sequence[JobState]], None] = lambda states: None,
    ) -> list[JobState]: ...


@dataclass(frozen=True)
class Ended:
    """What a call of an experiment leaves."""

    record: Any
    failed: str = ""
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Picture:
    """A figure, the name of its file, and what it shows for those who do not see it.

    draw: (record, narrow) -> the figure, or None where the record has nothing to show in it. A narrow one is to be read
    on a phone: its panels stand below each other.
    """

    name: str
    alt: str
    draw: Callable[[Any, bool], Figure | None]


class Judged(Protocol):
    """A claim that a record was asked, and the answer."""

    @property
    def claim(self) -> str: ...

    @property
    def reading(self) -> str: ...


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """Everything that commands, pages and documents need of an experiment; its name is its file's."""

    command: str
    """The name of its command."""
    position: int
    """Where it stands among the others on pages and in documents, the lowest first."""
    options: type
    """A frozen dataclass of the command's options, each with a default and a docstring."""
    plan: Callable[[Any, Path], Any]
    """(options, the folder of all runs) -> what will be run. Raises UsageError on bad options; writes nothing."""
    run: Callable[[Any, Path, Any], Any]
    """(plan, the record's file, which may hold an earlier record) -> what it gave. A call that was stopped goes on."""
    runs: Callable[[Any], Mapping[tuple[str, int], RunConfig]] | None = None
    kept: bool = True
    record: Any = None
    title: str
    question: str
    finding: Callable[[Any], str]
    """The answer in a sentence or two."""
    claims: Callable[[Any], Sequence[Judged]] = lambda _: ()
    tables: Callable[[Any], Sequence[TextTable]]
    pictures: Sequence[Picture]

    def read(self, path: Path, name: str) -> Any:
        """The record of the experiment of that name. Raises UsageError if it is another's, or damaged."""
        if self.record is not None:
            from attnres.lab import record

            return record.read_record(path, self.record)
        from attnres.lab import runs

        return runs.read_record(path, name)

    def write(self, path: Path, written: Any) -> None:
        if self.record is not None:
            from attnres.lab import record

            return record.write_record(path, written)
        from attnres.lab import runs

        return runs.write_record(path, written)


def steps_of(jobs: Sequence[Job]) -> str:
    """How many steps each job has: 40, or 38 to 40."""
    steps = sorted({job.config.steps for job in jobs})
    return str(steps[0]) if len(steps) == 1 else f"{steps[0]} to {steps[-1]}"
