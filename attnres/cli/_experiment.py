"""The command of an experiment of the lab, made from the experiment's options."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import tyro

from attnres.cli._checks import named_recipe
from attnres.errors import UsageError
from attnres.lab import load_experiment
from attnres.lab.experiment import Experiment
from attnres.train import RunConfig, load_recipe


def experiment_command(name: str, arguments: Sequence[str]) -> Callable[..., int]:
    """The command of that name, for tyro: the experiment's own options and where it writes.

    Their defaults are those of --quick or of a recipe, if the arguments have one of them.
    """
    experiment, recipe_file = load_experiment(name), named_recipe(arguments)
    quick = experiment.quick is not None and "--quick" in arguments
    if quick and recipe_file:
        raise UsageError("--quick and --recipe each say what a run is; give one of them")
    defaults: Any = experiment.quick if quick else experiment.options()
    folder = Path("runs") / ("quick" if quick else name)
    if recipe_file:
        config = load_recipe(recipe_file)
        model = dataclasses.replace(config.model, connection=RunConfig().model.connection)  # the arms name them
        defaults = dataclasses.replace(defaults, config=dataclasses.replace(config, model=model))
        folder = folder.with_name(f"{name}-{Path(recipe_file).stem}")

    def command(
        options: Any = defaults, out: Path = folder, record: Path | None = None, recipe: Path | None = None
    ) -> int:
        """Run the experiment.

        Args:
            options: The experiment's own.
            out: The folder of the page, its figures and all runs that are trained.
            record: The JSON file for everything that was measured; OUT/EXPERIMENT.json if not given.
            recipe: A Python file with config = RunConfig(...), whose values become the defaults of the runs.
        """
        return _run(experiment, options, out, record)

    own = Annotated[experiment.options, tyro.conf.arg(name="")]
    paths = {"out": Path, "record": Path | None, "recipe": Annotated[Path | None, tyro.conf.arg(metavar="FILE")]}
    command.__annotations__ = {"options": own, **paths, "return": int}
    return command


def _run(experiment: Experiment, options: Any, out: Path, record: Path | None) -> int:
    """Run it, keep its record and draw its page; return the exit code."""
    from attnres.cli._checks import alone_in
    from attnres.cli._tables import Output, print_error, print_table
    from attnres.cli._terminal import Terminal, stopped
    from attnres.lab.engine import Incomplete
    from attnres.lab.page import write_results
    from attnres.lab.runs import read_record, write_record
    from attnres.texttable import duration

    terminal, began = Terminal(Output()), time.monotonic()
    plan = experiment.plan(options, out)
    file = record or out / f"{experiment.kind}.json"
    saved = None
    try:
        with alone_in(out), terminal:
            try:
                ended = experiment.run(plan, file, terminal)
            except Incomplete as stop:
                (ended,) = stop.args
            write_record(file, ended.record)
            saved = file
            written = read_record(file, experiment.kind)
            terminal.say(f"\n{experiment.finding(written)}")
            for table in experiment.tables(written):
                print_table(terminal.console, table)
            if ended.failed:
                print_error(f"not every run was finished; the tables are without it\n{ended.failed}")
            with terminal.during("drawing"):
                page = write_results({experiment.kind: written}, out)
    except KeyboardInterrupt as stop:
        return stopped(stop, saved)
    terminal.say(f"{duration(time.monotonic() - began)}. Record: {file}. Report: {page}")
    for note in ended.notes:
        terminal.say(note)
    return 1 if ended.failed else 0
