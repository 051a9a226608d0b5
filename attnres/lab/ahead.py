"""What an experiment of several phases has before it: announced at its start, and counted into the time left."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from attnres.train.sweep import Job


class Phase(NamedTuple):
    """Runs that are trained together."""

    jobs: Sequence[Job]
    certain: bool = True
    """Whether they all come; else some may, as where a best learning rate lies at an edge of what was tried."""


class Bounds(NamedTuple):
    """At least and at most."""

    least: float
    most: float


NOTHING = Bounds(0, 0)


class Ahead:
    """The phases to come, in order. cost: of one step of a job, in any unit, where jobs differ."""

    def __init__(self, phases: Sequence[Phase], cost: Callable[[Job], float] = lambda job: 1.0) -> None:
        self._phases, self._cost = list(phases), cost

    def begin(self) -> Bounds:
        """Begin the first of them, and return what those behind it cost."""
        del self._phases[0]
        return self._total(lambda job: self._cost(job) * job.config.steps)

    def announced(self) -> str:
        """How many runs there are, how many tokens they read, and how many more there may be."""
        runs = self._total(lambda job: 1)
        tokens = self._total(lambda job: job.config.steps * job.config.tokens_per_step)
        text = f"{runs.least} runs, {tokens.least / 1e6:.1f} million tokens in all"
        if runs.most > runs.least:
            more, read = runs.most - runs.least, (tokens.most - tokens.least) / 1e6
            text += f", and up to {more} runs, {read:.1f} million tokens more where a best rate lies at an edge"
        return text

    def _total(self, of_job: Callable[[Job], float]) -> Bounds:
        totals = [(certain, sum(map(of_job, jobs))) for jobs, certain in self._phases]
        return Bounds(sum(total for certain, total in totals if certain), sum(total for _, total in totals))
