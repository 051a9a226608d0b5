"""How fast a process trains, and how long it waits."""

from __future__ import annotations

import statistics

from attnres.train.trainer import Trainer


class Pace:
    """What the steps of a process take, and what of that it waits, from one `record` to the next."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self._steps: list[tuple[float, float, float]] = []
        self._before = self._waited()

    def count(self, seconds: float) -> None:
        """Add a step that has just been made."""
        before, self._before = self._before, self._waited()
        self._steps.append((seconds, self._before[0] - before[0], self._before[1] - before[1]))

    def record(self) -> dict[str, float | None]:
        """Return medians over the steps since the last call, and start again.

        step_seconds; and of these data_seconds and waited_seconds, for its batches and for the other processes. None
        where there was no step.
        """
        names = "step_seconds", "data_seconds", "waited_seconds"
        medians = map(statistics.median, zip(*self._steps, strict=True)) if self._steps else (None,) * len(names)
        found: dict[str, float | None] = dict(zip(names, medians, strict=True))
        self._steps.clear()
        return found

    def _waited(self) -> tuple[float, float]:
        return self.trainer.data_seconds, self.trainer.waited_seconds
