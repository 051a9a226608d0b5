"""How fast a process trains, what it waits for, and how fast its processor could compute."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

import torch

from attnres.train.trainer import Trainer

PRODUCT_SIZES = {"cpu": 512, "cuda": 8192}
REPEATS = 5
PARTS = 5


class Pace:
    """What the steps of a process take, and what of that it waits, from one `record` to the next."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self.least_seconds = trainer.operations / product_speed(trainer.device, trainer.config.precision)
        """What a step would take at the speed of a product of matrices."""
        self._steps: list[tuple[float, float, float]] = []
        self._before = self._waited()

    def count(self, seconds: float) -> None:
        """Add a step that has just been made."""
        before, self._before = self._before, self._waited()
        self._steps.append((seconds, self._before[0] - before[0], self._before[1] - before[1]))

    def record(self) -> dict[str, float | None]:
        """Return medians over the steps since the last call, and begin anew.

        step_seconds; of these data_seconds and waited_seconds, for its batches and for the other processes; and
        share_of_peak, its operations per second over `product_speed`. None where there was no step.
        """
        names = "step_seconds", "data_seconds", "waited_seconds"
        medians = map(statistics.median, zip(*self._steps, strict=True)) if self._steps else (None,) * len(names)
        found: dict[str, float | None] = dict(zip(names, medians, strict=True))
        self._steps.clear()
        found["share_of_peak"] = self.least_seconds / seconds if (seconds := found["step_seconds"]) else None
        return found

    def _waited(self) -> tuple[float, float]:
        return self.trainer.data_seconds, self.trainer.waited_seconds


def range_over_parts(seconds: Sequence[float]) -> list[float] | None:
    """Return the lowest and the highest median over consecutive parts of a run: how far other work moved its steps.

    None where there are fewer steps than parts: one step does not say what a step takes.
    """
    if len(seconds) < PARTS:
        return None
    size = -(-len(seconds) // PARTS)
    medians = [statistics.median(seconds[first : first + size]) for first in range(0, len(seconds), size)]
    return [min(medians), max(medians)]


def product_speed(device: torch.device, precision: str) -> float:
    """Measure the operations per second of a large product of matrices, the best of a few, with torch's threads.

    It is what this process reaches here and now, less than what the processor's maker states and less again where
    other processes share it.
    """
    size = PRODUCT_SIZES.get(device.type, PRODUCT_SIZES["cpu"])
    factor = torch.ones(size, size, device=device, dtype=getattr(torch, precision))
    result = torch.empty_like(factor)

    def seconds() -> float:
        began = time.perf_counter()
        torch.mm(factor, factor, out=result)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter() - began

    seconds()  # the first one allocates
    return 2 * size**3 / min(seconds() for _ in range(REPEATS))
