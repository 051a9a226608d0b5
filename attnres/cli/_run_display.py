"""A training run on the terminal."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from attnres.cli._tables import print_error
from attnres.cli._terminal import Terminal
from attnres.data import in_bits


class RunDisplay(Terminal):
    """The events of a run as a bar, or where the output is no terminal as a line now and then."""

    validation, bytes_per_token = math.nan, 1.0

    def opening(self, work: str, done: int, total: int) -> None:
        """Called while the corpus is made ready."""
        self(done, total or 1, f"{work} the corpus")

    def show(self, event: dict[str, Any]) -> None:
        """Called by `train` for every event."""
        if event["kind"] == "start":
            self._start(event)
        elif event["kind"] == "eval":
            self.validation = event["loss"]
            if not self.console.is_terminal:
                self.say(f"step {event['step']}: validation loss {_loss(event['loss'], self.bytes_per_token)}")
        elif event["kind"] == "train":
            step, speed = event["step"], event["tokens_per_second"]
            what = f"step {step} of {self.steps}: loss {event['loss']:.3f}, validation {self.validation:.3f}"
            self(step, self.steps, f"{what}, {speed:,.0f} tokens/s")

    def done(self, summary: dict[str, Any], folder: Path) -> None:
        """Say how the run ended and where it is."""
        seconds = summary["step_seconds"]
        per_step = "" if seconds is None else f"{seconds * 1000:.0f} ms per step, "
        self.say(
            f"done: validation loss {_loss(summary['validation_loss'], summary['bytes_per_token'])} "
            f"after {summary['steps']} steps (best {summary['best_validation_loss']:.4f}), {per_step}"
            f"{summary['peak_memory_bytes'] / 2**20:.0f} MiB for training"
        )
        self.say(f"folder: {folder}")

    def fail(self, message: str, code: int) -> int:
        self.__exit__()
        print_error(message)
        return code

    def _start(self, event: dict[str, Any]) -> None:
        self.steps, self.bytes_per_token = event["steps"], event["bytes_per_token"]
        self.say(f"connection: {event['connection']}")
        self.say(f"parameters: {event['parameters']:,}")
        self.say(f"corpus:     {event['corpus']}; each ends with {event['separator']}")
        self.say(f"folder:     {event['folder']}")
        if event["note"]:
            self.say(event["note"])
        if event["step"]:
            self.say(f"going on from step {event['step']} of {event['steps']}")
        if event["compiles"]:
            self.say("compiling:  the first step and the first evaluation take half a minute or more")


def _loss(per_token: float, bytes_per_token: float) -> str:
    nats = per_token / bytes_per_token
    return f"{per_token:.4f} nats per token ({nats:.4f} nats, {in_bits(nats):.4f} bits per byte)"
