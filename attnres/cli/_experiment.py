"""The command of an experiment of the lab, made from the experiment's options."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import tyro

from attnres.lab import load_experiment


def experiment_command(command_name: str, name: str) -> Callable[..., int]:
    """The command of the experiment of that name, for tyro: its own options and where it writes."""

    def command(options: Any, out: Path = Path("runs") / command_name, record: Path | None = None) -> int:
        """Run the experiment.

        Args:
            options: The experiment's own.
            out: The folder of the page, its figures and all runs that are trained.
            record: The JSON file for everything that was measured; OUT/EXPERIMENT.json if not given.
        """
        return _run(name, options, out, record)

    own = Annotated[load_experiment(name).options, tyro.conf.arg(name="")]
    command.__annotations__ = {"options": own, "out": Path, "record": Path | None, "return": int}
    return command


def _run(name: str, options: Any, out: Path, record: Path | None) -> int:
    """Run it, keep its record and draw its page; return the exit code."""
    from attnres.cli._checks import alone_in
    from attnres.cli._tables import Output, print_error, print_table
    from attnres.cli._terminal import Terminal, stopped
    from attnres.lab.page import write_results
    from attnres.lab.runs import read_record, write_record
    from attnres.texttable import duration

    chosen = load_experiment(name)
    terminal, began = Terminal(Output()), time.monotonic()
    plan = chosen.plan(options, out)
    file = record or out / f"{name}.json"
    if file.exists():
        read_record(file, name)  # an error, before hours of training, where it is no record of this experiment
    saved = None
    try:
        with alone_in(out), terminal:
            ended = chosen.run(plan, file, terminal)
            write_record(file, ended.record)
            saved = file
            written = read_record(file, name)
            for table in chosen.tables(written):
                print_table(terminal.console, table)
            for note in ended.notes:
                terminal.say(note)
            if ended.failed:
                print_error(f"not every run was finished; the tables are without it\n{ended.failed}")
            with terminal.during("drawing"):
                page = write_results({name: written}, out)
    except KeyboardInterrupt as stop:
        return stopped(stop, saved)
    terminal.say(f"{duration(time.monotonic() - began)}. Record: {file}. Report: {page}")
    return 1 if ended.failed else 0
