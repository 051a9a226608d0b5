"""Train a model with any residual connection.

With nothing set it trains a small transformer with Block Attention Residuals on the Python sources of torch, byte by
byte:

    attnres train
    attnres train --model.connection residual --steps 600
    attnres train runs/wide --model.dim 128 --model.connection hc
    attnres train --model.connection block:block_size=2,query=input
    attnres train --data.tokenizer bpe:2048
    attnres train --data.paths 'texts/*.txt' --optimizer.lr 2e-3

A recipe is a Python file with config = RunConfig(...); options on the command line override it:

    attnres train --recipe recipes/block.py --steps 100

Several devices, or processes on one machine, under torchrun; `--shard` takes what the other two leave:

    torchrun --nproc-per-node 2 -m attnres train --shard 2
    torchrun --nproc-per-node 4 -m attnres train --pipeline 2 --virtual-stages 2 --shard 2 --accumulate 4

The run's folder holds its configuration, metrics (one JSON object per line), checkpoints and, at the end, a summary.
Stop it with Ctrl-C or in any other way: the same command continues from the last checkpoint, to the same result.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import tyro

from attnres.cli._checks import named_recipe
from attnres.cli._tables import Output, print_error
from attnres.cli._terminal import Terminal
from attnres.errors import UsageError
from attnres.parallel.layout import ONE_PROCESS, Layout
from attnres.signals import exit_code
from attnres.train import RunConfig, load_recipe


def command_for(arguments: list[str]) -> Callable[..., int]:
    """The command with the recipe among the arguments, if there is one, as its defaults."""
    if any(argument.partition("=")[0] == "--out" for argument in arguments):
        raise UsageError("the run's folder stands without a flag: attnres train FOLDER")
    recipe_file = named_recipe(arguments)
    base = load_recipe(recipe_file) if recipe_file else RunConfig()

    def command(
        folder: Annotated[Path | None, tyro.conf.Positional, tyro.conf.arg(metavar="[FOLDER]")] = None,
        recipe: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None,
        *,
        config: Annotated[RunConfig, tyro.conf.arg(name="")] = base,
        layout: Annotated[Layout, tyro.conf.arg(name="")] = ONE_PROCESS,
    ) -> int:
        """Train.

        Args:
            folder: The run's folder; one below runs/, named after the configuration, when not given.
            recipe: A Python file with config = RunConfig(...), whose values become the defaults below.
        """
        from attnres.train.folder import default_folder

        return run(config, folder or default_folder(config), layout)

    return command


def run(config: RunConfig, folder: Path, layout: Layout = ONE_PROCESS) -> int:
    """Train with progress on the terminal; return the exit code."""
    from attnres.parallel.world import is_main
    from attnres.train import Interrupted, RunStopped, train

    console = Output(quiet=not is_main())
    with RunDisplay(console) as display:
        try:
            summary = train(config, folder, listen=display.show, progress=display.opening, layout=layout)
        except Interrupted as stop:
            return display.fail(str(stop), exit_code(stop)) if is_main() else exit_code(stop)
        except RunStopped as error:
            return display.fail(str(error), 1)
    display.done(summary, folder)
    return 0


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
    from attnres.data import in_bits

    nats = per_token / bytes_per_token
    return f"{per_token:.4f} nats per token ({nats:.4f} nats, {in_bits(nats):.4f} bits per byte)"
