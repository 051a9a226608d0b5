"""What the command of an experiment of the lab does."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from attnres.cli._checks import alone_at, alone_in, check_own_page
from attnres.cli._tables import Output, print_error, print_table
from attnres.cli._terminal import Terminal, stopped
from attnres.errors import UsageError
from attnres.lab import load_experiment
from attnres.lab.page import PAGE, TITLE, figure_names, write_results
from attnres.lab.runs import read_record, write_record
from attnres.texttable import duration


def run_experiment(name: str, options: Any, out: Path, record: Path | None) -> int:
    """Run it, keep its record and draw its page; return the exit code."""
    chosen = load_experiment(name)
    check_own_page(out, PAGE, TITLE, figure_names({name: name}))
    terminal, began = Terminal(Output()), time.monotonic()
    plan = chosen.plan(options, out)
    file = record_file(out / f"{name}.json" if record is None else record, out, name)
    saved = None
    try:
        with alone_in(out), alone_at(file), terminal:
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
        return stopped(stop, out, [out / f"{name}.runs.jsonl"], saved)
    terminal.say(f"{duration(time.monotonic() - began)}. Record: {file}. Report: {page}")
    return 1 if ended.failed else 0


def record_file(path: Path, out: Path, name: str) -> Path:
    """The record's file, once it is certain that neither it nor `out` is in another's place.

    Raises UsageError, before hours of training, where one is a run's, or the file is not a record of that experiment.
    """
    for folder in (out, path.parent):
        if (folder / "config.json").is_file():
            raise UsageError(
                f"{folder} is the folder of a run, whose files must stay; choose another --out or --record"
            )
    if path.is_dir():
        raise UsageError(f"{path}: it is a folder; give --record the name of a file")
    if path.exists():
        try:
            read_record(path, name)
        except UsageError as error:
            raise UsageError(f"{error}; choose another --record") from error
    return path
