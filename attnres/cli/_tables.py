"""Tables of texts on the terminal."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table

from attnres.lab.tables import TextTable


def print_table(console: Console, table: TextTable) -> None:
    shown = Table(title=table.title, caption=table.note or None, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for index, column in enumerate(table.columns):
        # The first column names its row and is never cut.
        shown.add_column(column, justify="right" if index else "left", no_wrap=index == 0)
    for row in table.rows:
        shown.add_row(*(cell.replace("± ", "±") for cell in row))
    if not console.is_terminal:  # a file has no width that the table must fit into
        widest = Console(width=1000).measure(shown).maximum
        console = Console(file=console.file, width=max(console.width, widest))
    console.print(shown)
