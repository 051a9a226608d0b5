"""Live progress of many runs: one bar per arm, or a plain line now and then where the output is no terminal."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from attnres.train.sweep import JobState

PLAIN_SECONDS = 20.0


class SweepDisplay:
    """`watch` is the callback of `run_jobs`; arms maps each job's name to its arm."""

    def __init__(self, console: Console, arms: Mapping[str, str], steps: int) -> None:
        self.console = console
        self.arms = arms
        self.steps = steps
        self.began = time.monotonic()
        self.done_at_start: int | None = None
        self.last_line = self.began
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed:.0f}/{task.total:.0f} steps"),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self.tasks: dict[str, TaskID] = {}
        for arm in dict.fromkeys(arms.values()):
            total = steps * sum(other == arm for other in arms.values())
            self.tasks[arm] = self.progress.add_task(arm, total=total, note="waiting")
        self.whole = self.progress.add_task("all", total=steps * len(arms), note="")

    def __enter__(self) -> SweepDisplay:
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def watch(self, states: Sequence[JobState]) -> None:
        done = sum(state.step for state in states)
        if self.done_at_start is None:
            self.done_at_start = done
        left = self._time_left(done, len(states) * self.steps)
        for arm, task in self.tasks.items():
            of_arm = [state for state in states if self.arms[state.job.name] == arm]
            self.progress.update(task, completed=sum(state.step for state in of_arm), note=_note(of_arm))
        self.progress.update(self.whole, completed=done, note=left)
        if not self.console.is_terminal and time.monotonic() - self.last_line > PLAIN_SECONDS:
            self.last_line = time.monotonic()
            self.console.print(f"{done} of {len(states) * self.steps} steps, {left}", highlight=False)

    def _time_left(self, done: int, total: int) -> str:
        fresh = done - (self.done_at_start or 0)
        if done == total:
            return ""
        if not fresh:
            return "starting"
        seconds = (time.monotonic() - self.began) / fresh * (total - done)
        return f"about {seconds / 60:.0f} min left" if seconds > 90 else f"about {seconds:.0f} s left"


def _note(states: Sequence[JobState]) -> str:
    failed = [state for state in states if state.status == "failed"]
    running = [state.loss for state in states if state.status == "running" and state.loss is not None]
    if failed:
        return f"{len(failed)} failed"
    if running:
        return f"loss {running[-1]:.3f}"
    return "done" if all(state.status == "done" for state in states) else "waiting"
