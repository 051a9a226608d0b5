"""Train several residual connections side by side and show what depth does in each.

By default it trains four connections: the plain residual, the embedding fed back in (x0), Block and Full Attention
Residuals. Each has five seeds and reads the Python sources of torch, byte by byte:

    attnres compare
    attnres compare --quick
    attnres compare residual full hc mhc --seeds 5
    attnres compare residual block block:block_size=8 full:query=input,heads=4
    attnres compare --data.dataset sympy --data.tokenizer bpe:2048 --out runs/sympy
    attnres compare --model.embedding-std 0.02 --out runs/small-embedding
    attnres compare residual block full --recipe recipes/kimi_linear.py --seeds 2

The first connection is the baseline. Runs of one seed share initial weights and the order of the data, so differences
are paired. Every run is a one-thread process with its own folder. If you stop the command with Ctrl-C, or in any other
way, the same command continues it. It ends with a table, OUT/comparison.json and OUT/report.html.
"""

from __future__ import annotations

import shlex
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import tyro

from attnres.cli._checks import named_recipe
from attnres.errors import UsageError
from attnres.lab.defaults import ARMS, DEFAULTS, QUICK, recipe_defaults
from attnres.train import RunConfig
from attnres.train.workers import default_workers


def command_for(arguments: list[str]) -> Callable[..., int]:
    """The command, with the defaults of --quick or of a recipe if the arguments have one of them."""
    quick, recipe_file = "--quick" in arguments, named_recipe(arguments)
    if quick and recipe_file:
        raise UsageError("--quick and --recipe each say what a run is; give one of them")
    defaults = QUICK if quick else recipe_defaults(recipe_file) if recipe_file else DEFAULTS

    def command(
        arms: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="ARM")] = ARMS,
        out: Path = defaults.folder,
        seeds: int = defaults.seeds,
        workers: int = default_workers(),
        quick: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
        recipe: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None,
        *,
        config: Annotated[RunConfig, tyro.conf.arg(name="")] = defaults.config,
    ) -> int:
        """Compare.

        Args:
            arms: Connections to compare, each with options if it has any: NAME or NAME:OPTION=VALUE,OPTION=VALUE.
            out: The folder of the comparison.
            seeds: Paired seeds: seed, seed + 1, ..
            workers: Runs at a time, each with one thread.
            quick: A small comparison, in about two minutes; it decides nothing.
            recipe: A Python file with config = RunConfig(...), whose values become the defaults below.
        """
        from attnres.cli._checks import alone_in
        from attnres.cli._tables import Output, print_error, print_table
        from attnres.cli._terminal import Terminal, stopped
        from attnres.lab.comparison import plan_comparison, run_comparison
        from attnres.lab.options import PairedOptions
        from attnres.texttable import duration

        terminal, began = Terminal(Output()), time.monotonic()
        plan = plan_comparison(PairedOptions(arms, seeds, workers, config), out)
        try:
            with alone_in(out), terminal:
                compared = run_comparison(plan, config, out, workers, terminal)
        except KeyboardInterrupt as stop:
            return stopped(stop)
        for table in compared.tables:
            print_table(terminal.console, table)
        if compared.failed:
            partial = "not every run was finished; the tables are of the seeds that every connection has"
            print_error(f"{partial}\n{compared.failed}")
        terminal.say(f"{duration(time.monotonic() - began)}. Report: {compared.page}")
        if not compared.failed:
            terminal.say(_what_next(next(one.folder for one in reversed(plan) if one.seed == config.seed)))
        return 1 if compared.failed else 0

    return command


def _what_next(run: Path) -> str:
    """The next commands to try, written so that they run in this shell with or without an activated environment."""
    as_module = Path(sys.argv[0]).name == "__main__.py"  # python -m attnres; no shell runs that file
    program = "attnres" if as_module or shutil.which("attnres") else shlex.quote(sys.argv[0])
    folder = shlex.quote(str(run))
    return f"""
Open the report in a browser. Then try:
  {program} look {folder}                              (the same model live: change what depth reads)
  {program} generate {folder} --prompt "def read("     (what it writes)
  {program} compare residual x0 block full --seeds 5   (the table of README, about nine minutes)"""
