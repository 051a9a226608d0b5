"""The tables of the recorded runs as one document, docs/TABLES.md."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from attnres.lab import experiments
from attnres.lab.numbers import record_hash
from attnres.lab.page import section_facts, section_title
from attnres.lab.runs import Record
from attnres.texttable import TextTable, visible

HEAD = """\
# All tables

`attnres report --tables > docs/TABLES.md` writes this page from the records in [results/](../results).
The hash of each record says whether its section is still its own.
[RESULTS.md](RESULTS.md) says what the numbers mean, [EVIDENCE.md](EVIDENCE.md) at length.
Its head has the commit in which `recipes/ladder`, `recipes/ladder.sh` and `recipes/rules` are."""

STORED = "stored-tables.md"
"""Sections that no code makes any more: of commands that have left, and of runs from before there were records."""


def tables_page(records: Mapping[str, Record], folder: Path) -> str:
    """All tables of the records by name, then what is STORED in the folder, if there is any. Markdown."""
    files = {name: folder / f"{name}.json" if folder.is_dir() else folder for name in records}
    sections = [_section(name, record, files[name]) for name, record in records.items()]
    if (folder / STORED).exists():
        sections.append((folder / STORED).read_text(encoding="utf-8").rstrip())
    return visible("\n\n".join([HEAD, *sections]), keep="\n") + "\n"


def _hash(path: Path) -> str:
    return f"- sha256 of results/{path.name}: {record_hash(path.read_text(encoding='utf-8'))}"


def _section(name: str, record: Record, path: Path) -> str:
    experiment, title = experiments()[record.kind], section_title(name, record)
    facts = "\n".join(f"- {fact}: {value}" for fact, value in section_facts(name, record).items())
    facts = f"{facts}\n{_hash(path)}"
    tables = (f"### {table.title}\n\n{_markdown(table)}" for table in experiment.tables(record))
    return "\n\n".join([f"## {title}", experiment.question, *tables, "### Where this comes from", facts])


def _markdown(table: TextTable) -> str:
    """The table without its title, and its note."""
    head, *rows = (f"| {' | '.join(map(visible, row))} |" for row in (table.columns, *table.rows))
    return "\n".join([head, "|" + "---|" * len(table.columns), *rows, "", table.note])
