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
Stop it with Ctrl-C or in any other way: the same command goes on from the last checkpoint, to the same result.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import tyro

from attnres.cli._checks import named_recipe
from attnres.cli._tables import Output
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
    from attnres.cli._run_display import RunDisplay
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
