"""Lines and tables on the terminal, with nothing hidden in them."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from attnres.texttable import TextTable, visible

UNLIMITED = 10_000
NAME_WIDTH = 12
"""Characters that a name keeps on each of its lines."""


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
    """Print the table with every name and number whole: names fold where room is short, numbers never do.

    Where a terminal has no room for that either, rows stand below each other, with a line for each of their cells.
    """
    headings = tuple(map(visible, table.columns))
    rows = [tuple(visible(cell.replace("± ", "±")) for cell in row) for row in table.rows]
    columns = list(zip(headings, *rows, strict=True))
    between = 2 * len(columns) + 1
    room = console.width if console.is_terminal else UNLIMITED  # a file has no width that the table must fit into
    widths = _widths(columns, room - between)
    whole = sum(widths) + between
    console.print(Text(visible(table.title), "bold"), soft_wrap=not console.is_terminal)
    if whole > room:
        _print_apart(console, headings, rows)
    else:
        wide = console if whole <= console.width else Output(file=console.file, width=whole)
        wide.print(_side_by_side(headings, rows, widths), highlight=False)
    if table.note:
        note = visible(table.note, keep="\n")
        console.print(Text(f"{note}\n", "dim"), soft_wrap=not console.is_terminal)


def _side_by_side(headings: Sequence[str], rows: Sequence[Sequence[str]], widths: Sequence[int]) -> Table:
    shown = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for index, (heading, width) in enumerate(zip(headings, widths, strict=True)):
        shown.add_column(Text(heading), justify="right" if index else "left", overflow="fold", width=width)
    for row in rows:
        shown.add_row(*map(Text, row))
    return shown


def _print_apart(console: Console, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    for name, *cells in rows:
        console.print(Text(f"{headings[0]} {name}", overflow="fold"), highlight=False)
        shown = Table(box=None, show_header=False, padding=(0, 0, 0, 2))
        for _ in range(2):
            shown.add_column(overflow="fold")
        for heading, cell in zip(headings[1:], cells, strict=True):
            if cell:
                shown.add_row(Text(heading), Text(cell))
        console.print(shown, highlight=False)


def _widths(columns: Sequence[tuple[str, ...]], room: int) -> list[int]:
    """The columns' widths. Where room is short headings take several lines first, then cells, down to whole words."""
    words = [max(len(word) for cell in column for word in cell.split() or [""]) for column in columns]
    cells = [max([word, *map(len, column[1:])]) for word, column in zip(words, columns, strict=True)]
    widths = [max(cell, len(column[0])) for cell, column in zip(cells, columns, strict=True)]
    for least in (cells, [min(words[0], NAME_WIDTH), *words[1:]]):
        while sum(widths) > room and widths != least:
            spare = [width - low for width, low in zip(widths, least, strict=True)]
            widths[max(range(len(widths)), key=lambda index: (spare[index] > 0, widths[index]))] -= 1
    return widths
