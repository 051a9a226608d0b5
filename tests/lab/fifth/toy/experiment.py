from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from attnres.lab.toy.options import Options
from matplotlib.figure import Figure

from attnres.errors import UsageError
from attnres.lab.experiment import Ended, Experiment, Picture, Progress
from attnres.lab.figures import panels
from attnres.lab.record import Record, header
from attnres.lab.tables import TextTable


@dataclass(frozen=True, kw_only=True)
class ToyRecord(Record):
    kind: ClassVar = "toy"
    written_by: ClassVar = "throw"
    never_empty: ClassVar = ("eyes",)

    eyes: tuple[int, ...]


@dataclass(frozen=True)
class Claim:
    claim: str
    reading: str


def plan(options: Options, out: Path) -> int:
    if options.dice < 1:
        raise UsageError("dice: give at least one")
    return options.dice


def run(dice: int, file: Path, progress: Progress) -> Ended[ToyRecord]:
    draw = random.Random(0)
    run_record = {"versions": {"commit": "abc"}, "machine": {}, "corpus": {}, "config": {}}
    with progress.bar(dice) as advance:
        eyes = []
        for number in range(dice):
            eyes.append(draw.randint(1, 6))
            advance(1, f"die {number}")
    return Ended(ToyRecord(**header(run_record, 0.0, ["abc"]), eyes=tuple(eyes)), notes=["thrown by a fair hand"])


def tables(record: ToyRecord) -> list[TextTable]:
    rows = tuple((f"die {number}", str(eyes)) for number, eyes in enumerate(record.eyes))
    return [TextTable("All throws", ("die", "eyes"), rows)]


def bars(record: ToyRecord, narrow: bool) -> Figure:
    figure, (axes,) = panels(1, 1, (4.0, 3.0), narrow)
    axes.bar(range(len(record.eyes)), record.eyes)
    return figure


EXPERIMENT = Experiment(
    command="throw",
    position=9,
    options=Options,
    plan=plan,
    run=run,
    record=ToyRecord,
    title="Are the dice fair?",
    question="Every die once.",
    finding=lambda record: f"{sum(record.eyes)} eyes in all.",
    claims=lambda record: [Claim("the dice are fair", "not decided")],
    tables=tables,
    pictures=(Picture("toy", "the eyes of every die", bars),),
)
