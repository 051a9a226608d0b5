"""Tables of texts on the terminal."""

from __future__ import annotations

from rich.table import Table

from attnres.lab.tables import TextTable


def rich_table(table: TextTable) -> Table:
    shown = Table(title=table.title, caption=table.note or None)
    for index, column in enumerate(table.columns):
        shown.add_column(column, justify="right" if index else "left")
    for row in table.rows:
        shown.add_row(*row)
    return shown
