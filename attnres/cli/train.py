"""Train a model with any residual connection.

With nothing set it trains a small transformer with Block Attention Residuals on the Python standard library's own
source files, byte by byte:

    attnres train
    attnres train --model.connection residual --steps 600
    attnres train runs/wide --model.dim 128 --model.connection hc
    attnres train --model.connection block --model.connection-options block_size 2 query input
    attnres train --data.paths 'texts/*.txt' --optimizer.lr 2e-3

A recipe is a Python file with config = RunConfig(...); options on the command line override it, and naming another
connection drops the options that it has for its own:

    attnres train --recipe recipes/block.py --steps 100

Several devices, or processes on one machine, under torchrun; `--shard` takes what the other two leave:

    torchrun --nproc-per-node 2 -m attnres train --shard 2
    torchrun --nproc-per-node 4 -m attnres train --pipeline 2 --virtual-stages 2 --shard 2 --accumulate 4

The run's folder holds its configuration, metrics (one JSON object per line), checkpoints and, at the end, a summary.
Stop it with Ctrl-C or in any other way: the same command goes on from the last checkpoint, to the same result.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from attnres.cli._recipe import named_recipe
from attnres.parallel.layout import Layout
from attnres.parallel.world import is_main
from attnres.train import ONE_PROCESS, Interrupted, RunConfig, RunStopped, config_to_json, load_recipe, train

Event = dict[str, Any]


def command_for(arguments: list[str]) -> Callable[..., int]:
    """The command with the recipe among the arguments, if there is one, as its defaults."""
    recipe_file = named_recipe(arguments)
    base = load_recipe(recipe_file) if recipe_file else RunConfig()
    # tyro would make an option of each key of a filled dict, and take no others.
    defaults = _with_connection_options(base, {})

    def command(
        folder: Annotated[Path | None, tyro.conf.Positional, tyro.conf.arg(metavar="[FOLDER]")] = None,
        recipe: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None,
        *,
        config: Annotated[RunConfig, tyro.conf.arg(name="")] = defaults,
        layout: Annotated[Layout, tyro.conf.arg(name="")] = ONE_PROCESS,
    ) -> int:
        """Train.

        Args:
            folder: The run's folder; one below runs/, named after the configuration, when not given.
            recipe: A Python file with config = RunConfig(...), whose values become the defaults below.
        """
        if config.model.connection == base.model.connection:
            options = {**base.model.connection_options, **config.model.connection_options}
            config = _with_connection_options(config, options)
        return run(config, folder or default_folder(config), layout)

    return command


def _with_connection_options(config: RunConfig, options: dict[str, Any]) -> RunConfig:
    return replace(config, model=replace(config.model, connection_options=options))


def run(config: RunConfig, folder: Path, layout: Layout = ONE_PROCESS) -> int:
    """Train with progress on the terminal; return the exit code."""
    console = Console(quiet=not is_main())
    with _Display(console) as display:
        try:
            summary = train(config, folder, listen=display.show, progress=display.opening, layout=layout)
        except Interrupted as stop:
            return display.fail(str(stop), 130) if is_main() else 130
        except RunStopped as error:
            return display.fail(str(error), 1) if error.to_be_printed else 1
    console.print(
        f"done: validation loss {summary['validation_loss']:.4f} nats per token after {summary['steps']} steps "
        f"(best {summary['best_validation_loss']:.4f}), {summary['step_seconds'] * 1000:.0f} ms per step, "
        f"{summary['peak_memory_bytes'] / 2**20:.0f} MiB for training",
        highlight=False,
        soft_wrap=True,
    )
    console.print(f"folder: {folder}", highlight=False, soft_wrap=True)
    return 0


def default_folder(config: RunConfig) -> Path:
    """A folder of its own for every configuration, so that the same command finds its run again."""
    model = config.model
    digest = hashlib.sha256(json.dumps(config_to_json(config), sort_keys=True).encode()).hexdigest()[:6]
    return Path("runs") / f"{model.connection}-{model.layers}x{model.dim}-seed{config.seed}-{digest}"


class _Display:
    """The events of a run as a live bar, or as plain lines where the output is no terminal."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.validation = float("nan")
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

    def __enter__(self) -> _Display:
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def opening(self, stage: str, done: int, total: int) -> None:
        """Called while the corpus is made ready."""
        self.progress.update(self.task, description=f"{stage} the corpus", completed=done, total=total or None)

    def show(self, event: Event) -> None:
        """Called by `train` for every event."""
        if event["kind"] == "start":
            self._start(event)
        elif event["kind"] == "eval":
            self.validation = event["loss"]
            if not self.console.is_terminal:
                self._print(f"step {event['step']}: validation loss {event['loss']:.4f}")
        elif event["kind"] == "train":
            self._step(event)

    def fail(self, message: str, code: int) -> int:
        self.progress.stop()
        print(f"attnres: {message}", file=sys.stderr)
        return code

    def _start(self, event: Event) -> None:
        self.steps, self.began_at = event["steps"], event["step"]
        self._print(f"connection: {event['connection']}")
        self._print(f"parameters: {event['parameters']:,}")
        self._print(f"corpus:     {event['corpus']}")
        self._print(f"folder:     {event['folder']}")
        if event["step"]:
            self._print(f"going on from step {event['step']} of {event['steps']}")
        self.progress.update(self.task, description="training", total=event["steps"], completed=event["step"])

    def _step(self, event: Event) -> None:
        step, loss, speed = event["step"], event["loss"], event["tokens_per_second"]
        text = f"loss {loss:.3f}  validation {self.validation:.3f}  {speed:,.0f} tokens/s"
        self.progress.update(self.task, description=text, completed=step)
        if not self.console.is_terminal and (step % max(1, self.steps // 20) == 0 or step == self.steps):
            left = (self.steps - step) * event["step_seconds"]
            self._print(f"step {step} of {self.steps}: loss {loss:.4f}, {speed:,.0f} tokens/s, {left:.0f} s left")

    def _print(self, line: str) -> None:
        self.console.print(line, highlight=False, soft_wrap=True, markup=False)
