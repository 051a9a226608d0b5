"""What an experiment is: from the options of its command to its section of the results page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnres.lab.engine import ProgressDisplay, SweepEnd
from attnres.lab.judge import Statement
from attnres.lab.runs import Record
from attnres.texttable import TextTable

if TYPE_CHECKING:
    from attnres.report.charts import Plot


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """Everything that commands, pages and documents need of an experiment."""

    kind: str
    """What its records say that they are: the name of their files, and of the figures' beginnings."""
    position: int
    """Where it stands among the others on pages and in documents, the lowest first."""
    options: type
    """A frozen dataclass of the command's options, each with a default and a docstring."""
    quick: Any = None
    """The options with which --quick begins, where the command has that."""
    plan: Callable[[Any, Path], Any]
    """(options, the folder of all runs) -> what will be run. Raises UsageError on bad options; writes nothing."""
    run: Callable[[Any, Path, ProgressDisplay], SweepEnd]
    """(plan, the record's file, which may hold an earlier record) -> what it gave. A call that was stopped goes on."""
    title: str
    question: str
    finding: Callable[[Record], str]
    """The answer in a sentence or two."""
    claims: Callable[[Record], Sequence[Statement]] = lambda _: ()
    tables: Callable[[Record], Sequence[TextTable]]
    pictures: Callable[[Record], Sequence[Plot]]
    """Those that a record has something to show in."""
