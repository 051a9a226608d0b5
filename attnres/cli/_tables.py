"""Lines and tables on the terminal, with nothing hidden in them."""

from __future__ import annotations

import errno
import os
import sys

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from attnres.texttable import TextTable, visible

UNLIMITED = 10_000


class Output(Console):
    """rich's console, which leaves it to the command what follows from an output without a reader: its exit code, and a
    run is saved first."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


def print_line(console: Console, line: str) -> None:
    console.print(visible(line, keep="\n"), highlight=False, soft_wrap=True, markup=False)


def print_error(message: str) -> None:
    shown = visible(message, keep="\n")
    print(f"attnres: {shown}", file=sys.stderr)


def print_table(console: Console, table: TextTable) -> None:
    """Print the table. On a narrow terminal cells fold and nothing is left out; a file has a line for each row."""
    shown = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for index, heading in enumerate(table.columns):
        shown.add_column(Text(visible(heading)), justify="right" if index else "left", overflow="fold")
    for row in table.rows:
        # A cell folds at its spaces, and an error on a line of its own reads as another number.
        shown.add_row(*(Text(visible(cell.replace("± ", "±"))) for cell in row))
    console.print(Text(visible(table.title), "bold"), soft_wrap=not console.is_terminal)
    wide = console if console.is_terminal else Output(file=console.file, width=UNLIMITED)
    wide.print(shown, highlight=False)
    if table.note:
        note = visible(table.note, keep="\n")
        console.print(Text(f"{note}\n", "dim"), soft_wrap=not console.is_terminal)
