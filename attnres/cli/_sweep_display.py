"""Live progress of many runs: one bar per arm, or a plain line now and then where the output is no terminal."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from attnres.lab.ahead import NOTHING, Bounds
from attnres.texttable import visible

if TYPE_CHECKING:
    from attnres.train.sweep import Job, JobState

PLAIN_SECONDS = 20.0


class SweepDisplay:
    """`watch` is the callback of `run_jobs`; arms maps each job's name to its arm.

    cost: of one step of a job, in any unit, where jobs differ; the time left follows it.
    later: what the runs behind these cost, in the same unit.
    """

    def __init__(
        self,
        console: Console,
        jobs: Sequence[Job],
        arms: Mapping[str, str],
        cost: Callable[[Job], float] = lambda _: 1.0,
        later: Bounds = NOTHING,
    ) -> None:
        self.console = console
        self.later = later
        self.arms = arms
        self.cost = {job.name: cost(job) for job in jobs}
        self.whole_cost = sum(self.cost[job.name] * job.config.steps for job in jobs)
        self.began: float | None = None  # when the first step was seen: before it come imports and a first compilation
        self.fresh = 0.0
        self.last_steps: dict[str, int] = {}
        self.last_line = time.monotonic()
        self.progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.completed:.0f}/{task.total:.0f} steps"),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self.tasks: dict[str, TaskID] = {}
        for arm in dict.fromkeys(arms.values()):
            total = sum(job.config.steps for job in jobs if arms[job.name] == arm)
            self.tasks[arm] = self.progress.add_task(visible(arm), total=total, note="waiting")
        self.steps = sum(job.config.steps for job in jobs)
        self.whole = self.progress.add_task("all", total=self.steps, note="")

    def __enter__(self) -> SweepDisplay:
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def watch(self, states: Sequence[JobState]) -> None:
        done = sum(state.step for state in states)
        spent = sum(self.cost[state.job.name] * state.step for state in states)
        for state in states:
            # A killed run goes on from its checkpoint, behind the steps that it had logged: what rises was computed.
            name, step = state.job.name, state.step
            self.fresh += self.cost[name] * max(0, step - self.last_steps.get(name, step))
            self.last_steps[name] = step
        if self.began is None and any(state.status == "running" and state.step for state in states):
            self.began, self.fresh = time.monotonic(), 0.0
        left = self._time_left(spent)
        for arm, task in self.tasks.items():
            of_arm = [state for state in states if self.arms[state.job.name] == arm]
            self.progress.update(task, completed=sum(state.step for state in of_arm), note=_note(of_arm))
        self.progress.update(self.whole, completed=done, note=left)
        if not self.console.is_terminal and time.monotonic() - self.last_line > PLAIN_SECONDS:
            self.last_line = time.monotonic()
            line = f"{done} of {self.steps} steps"
            self.console.print(f"{line}, {left}" if left else line, highlight=False)

    def _time_left(self, spent: float) -> str:
        left = [self.whole_cost - spent + later for later in self.later]
        if left[1] <= 0:
            return ""
        if not self.fresh or self.began is None:
            return "starting"
        pace = (time.monotonic() - self.began) / self.fresh
        unit, length = ("min", 60) if pace * left[1] > 90 else ("s", 1)
        amounts = dict.fromkeys(f"{pace * cost / length:.0f}" for cost in left)
        behind = " with the runs behind these" if self.later[1] else ""
        return f"about {' to '.join(amounts)} {unit} left{behind}"


def _note(states: Sequence[JobState]) -> str:
    failed = [state for state in states if state.status == "failed"]
    running = [state.loss for state in states if state.status == "running" and state.loss is not None]
    if failed:
        return f"{len(failed)} failed"
    if running:
        return f"loss {running[-1]:.3f}"
    return "done" if all(state.status == "done" for state in states) else "waiting"
