"""Scores as a table and as plain data."""

from __future__ import annotations

import math
import platform
import shlex
import sys
from collections.abc import Sequence
from datetime import date
from importlib.metadata import version
from typing import Any

from attnres.evaluation.harness import Difference, Score
from attnres.texttable import TextTable

ARROWS = {True: "↑", False: "↓", None: ""}


def score_table(
    scores: Sequence[Score], others: Sequence[Score], differences: Sequence[Difference | None], models: Sequence[str]
) -> TextTable:
    """One metric of one task per row.

    Args:
        others: The other model's scores, if there is one.
        differences: To those, in the order of the scores.
        models: What the models are called: one name, or two.
    """
    theirs = {(other.task, other.metric): other for other in others}
    columns = ("task", "metric", "documents", *models, *["difference"] * (len(models) > 1))
    rows = []
    for score, difference in zip(scores, differences, strict=True):
        row = [score.task, f"{score.metric} {ARROWS[score.higher_is_better]}", str(score.documents), _number(score)]
        if difference:
            row += [_number(theirs[score.task, score.metric]), _number(difference, "+")]
        rows.append((*row, *[""] * (len(columns) - len(row))))
    note = "Value ± standard error; ↑ higher is better, ↓ lower is better."
    return TextTable("scores", columns, tuple(rows), note)


def score_record(
    settings: dict[str, Any],
    scores: Sequence[Score],
    others: Sequence[Score],
    differences: Sequence[Difference | None],
) -> dict[str, Any]:
    """Everything that was scored, and how, for JSON; a number that is not finite is null."""

    def finite(value: Any) -> Any:
        return None if isinstance(value, float) and not math.isfinite(value) else value

    def plain(entry: Score | Difference | None) -> dict[str, Any] | None:
        hidden = ("samples", "aggregate")
        return entry and {name: finite(value) for name, value in vars(entry).items() if name not in hidden}

    return {
        "command": shlex.join(["attnres", *sys.argv[1:]]),
        "date": date.today().isoformat(),
        "versions": {name: version(name) for name in ("attnres", "lm-eval", "torch", "transformers")},
        "machine": platform.platform(),
        **settings,
        "scores": [plain(score) for score in scores],
        "others": [plain(score) for score in others],
        "differences": [plain(difference) for difference in differences],
    }


def _number(entry: Score | Difference, sign: str = "") -> str:
    return f"{entry.value:{sign}.4f}" + ("" if entry.error is None else f" ± {entry.error:.4f}")
