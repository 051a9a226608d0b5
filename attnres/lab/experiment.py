"""What an experiment is: from the options of its command to its section of the results page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from matplotlib.figure import Figure

from attnres.lab.ahead import NOTHING, Bounds
from attnres.lab.record import Record
from attnres.texttable import TextTable
from attnres.train import RunConfig
from attnres.train.sweep import Job, JobState

Options = TypeVar("Options")
Plan = TypeVar("Plan")
R = TypeVar("R", bound=Record)


class Progress(Protocol):
    """What an experiment says while it runs, and how it has its jobs trained; the command line shows it."""

    def say(self, line: str) -> None:
        """Print one line."""
        ...

    def log(self, line: str) -> None:
        """Print one line where nothing moves: the output is no terminal, and shows no bar."""
        ...

    def during(self, what: str) -> AbstractContextManager[object]:
        """Show that something takes its time."""
        ...

    def bar(self, total: float) -> AbstractContextManager[Callable[[float, str], None]]:
        """Show a bar; what is called with a part of the total and its name moves it on."""
        ...

    def train(
        self,
        jobs: Sequence[Job],
        labels: Sequence[str],
        workers: int,
        costs: Sequence[float] | None = None,
        later: Bounds = NOTHING,
        watch: Callable[[Sequence[JobState]], None] = lambda states: None,
    ) -> list[JobState]:
        """Train the jobs that are not done, `workers` at a time, and return how all of them ended.

        labels: under which name each job is shown. costs: of one step of each job, in any unit, where they differ.
        later: what the runs behind these cost, in the same unit; the time left counts them.
        watch: called about twice a second with the states of all jobs.
        """
        ...


@dataclass(frozen=True)
class Ended(Generic[R]):
    """What a call of an experiment leaves."""

    record: R
    failed: str = ""
    """One line for each run that was not finished and should have been."""
    notes: Sequence[str] = ()
    """Lines to be shown below the tables."""


@dataclass(frozen=True)
class Picture(Generic[R]):
    """A figure, the name of its file, and what it shows for those who do not see it.

    draw: (record, narrow) -> the figure, or None where the record has nothing to show in it. A narrow one is to be read
    on a phone: its panels stand below each other.
    """

    name: str
    alt: str
    draw: Callable[[R, bool], Figure | None]


class Judged(Protocol):
    """A claim that a record was asked, and the answer."""

    @property
    def claim(self) -> str: ...

    @property
    def reading(self) -> str: ...


@dataclass(frozen=True, kw_only=True)
class Experiment(Generic[Options, Plan, R]):
    """Everything that commands, pages and documents need of an experiment; its name is its folder's."""

    command: str
    """The name of its command."""
    position: int
    """Where it stands among the others on pages and in documents, the lowest first."""
    options: type[Options]
    """A frozen dataclass of the command's options, each with a default and a docstring."""
    plan: Callable[[Options, Path], Plan]
    """(options, the folder of all runs) -> what will be run. Raises UsageError on bad options; writes nothing."""
    run: Callable[[Plan, Path, Progress], Ended[R]]
    """(plan, the record's file, which may hold an earlier record) -> what it gave. A call that was stopped goes on."""
    runs: Callable[[Plan], Mapping[tuple[str, int], RunConfig]] | None = None
    """plan -> by arm and seed the runs of which the record is written anew; None where `run` goes on with a record."""
    kept: bool = True
    """Whether what is measured of a run stays in its folder, too, so that the record is made again in a moment."""
    record: type[R]
    title: str
    question: str
    finding: Callable[[R], str]
    """The answer in a sentence or two."""
    claims: Callable[[R], Sequence[Judged]] = lambda _: ()
    tables: Callable[[R], Sequence[TextTable]]
    pictures: Sequence[Picture[R]]


def steps_of(jobs: Sequence[Job]) -> str:
    """How many steps each job has: 40, or 38 to 40."""
    steps = sorted({job.config.steps for job in jobs})
    return str(steps[0]) if len(steps) == 1 else f"{steps[0]} to {steps[-1]}"
