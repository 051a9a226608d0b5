"""A training run on the terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from attnres.cli._tables import print_error, print_line
from attnres.data import in_bits

Event = dict[str, Any]


class RunDisplay:
    """The events of a run as a live bar, or as plain lines where the output is no terminal."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.validation = float("nan")
        self.bytes_per_token = 1.0
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self.task = self.progress.add_task("opening the corpus", total=None)

    def __enter__(self) -> RunDisplay:
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def opening(self, work: str, done: int, total: int) -> None:
        """Called while the corpus is made ready."""
        self.progress.update(self.task, description=f"{work} the corpus", completed=done, total=total or None)

    def show(self, event: Event) -> None:
        """Called by `train` for every event."""
        if event["kind"] == "start":
            self._start(event)
        elif event["kind"] == "eval":
            self.validation = event["loss"]
            if not self.console.is_terminal:
                self._print(f"step {event['step']}: validation loss {_loss(event['loss'], self.bytes_per_token)}")
        elif event["kind"] == "train":
            self._step(event)

    def done(self, summary: dict[str, Any], folder: Path) -> None:
        """Say how the run ended and where it is."""
        seconds = summary["step_seconds"]
        per_step = "" if seconds is None else f"{seconds * 1000:.0f} ms per step, "
        self._print(
            f"done: validation loss {_loss(summary['validation_loss'], summary['bytes_per_token'])} "
            f"after {summary['steps']} steps (best {summary['best_validation_loss']:.4f}), {per_step}"
            f"{summary['peak_memory_bytes'] / 2**20:.0f} MiB for training"
        )
        self._print(f"folder: {folder}")

    def fail(self, message: str, code: int) -> int:
        self.progress.stop()
        print_error(message)
        return code

    def _start(self, event: Event) -> None:
        self.steps, self.began_at = event["steps"], event["step"]
        self.bytes_per_token = event["bytes_per_token"]
        self._print(f"connection: {event['connection']}")
        self._print(f"parameters: {event['parameters']:,}")
        self._print(f"corpus:     {event['corpus']}; each ends with {event['separator']}")
        self._print(f"folder:     {event['folder']}")
        if event["note"]:
            self._print(event["note"])
        if event["step"]:
            self._print(f"going on from step {event['step']} of {event['steps']}")
        if event["compiles"]:
            self._print("compiling:  the first step and the first evaluation take half a minute or more")
        self.progress.update(self.task, description="training", total=event["steps"], completed=event["step"])

    def _step(self, event: Event) -> None:
        step, loss, speed = event["step"], event["loss"], event["tokens_per_second"]
        text = f"loss {loss:.3f}  validation {self.validation:.3f}  {speed:,.0f} tokens/s"
        self.progress.update(self.task, description=text, completed=step)
        if not self.console.is_terminal and (step % max(1, self.steps // 20) == 0 or step == self.steps):
            left = (self.steps - step) * event["step_seconds"]
            self._print(f"step {step} of {self.steps}: loss {loss:.4f}, {speed:,.0f} tokens/s, {left:.0f} s left")

    def _print(self, line: str) -> None:
        print_line(self.console, line)


def _loss(per_token: float, bytes_per_token: float) -> str:
    nats = per_token / bytes_per_token
    return f"{per_token:.4f} nats per token ({nats:.4f} nats, {in_bits(nats):.4f} bits per byte)"
