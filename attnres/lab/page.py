"""The lab's records as a page (results.html with its figures) and as one document of tables (results/tables.md)."""

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attnres.files import write_bytes
from attnres.lab import experiments
from attnres.lab.runs import Record, read_object, read_record
from attnres.report.draw import drawn
from attnres.report.html import page, styles
from attnres.texttable import TextTable, visible

PAGE = "results.html"

HEAD = """\
# All tables

`attnres report --tables > results/tables.md` writes this page from the records in this folder.
The hash of each record says whether its section is still its own.
[results.md](../docs/results.md) says what the numbers mean, and [report.md](../paper/report.md) at length.
Its last section has the commit in which `recipes/ladder`, `recipes/ladder.sh` and `recipes/rules` are."""
STORED = "stored-tables.md"
"""Sections that no code makes any more: of commands that have left, and of runs from before there were records."""


def read_records(place: Path) -> dict[str, Record]:
    """The records in a folder, or the one of a file, by the names of their files, in the order of the page.

    EXPERIMENT.json is that experiment's record; files of other names are records of what they say they are, and come
    behind it. What is none of an experiment is passed over.
    """
    files = {path.stem: path for path in (sorted(place.glob("*.json")) if place.is_dir() else [place])}
    kinds = {name: read_object(path).get("kind") for name, path in files.items()}
    return {
        name: read_record(files[name], kind)
        for kind, experiment in experiments().items()
        for name in [kind, *(name for name, of in kinds.items() if of == kind and name not in experiments())]
        if name in kinds
    }


def write_results(records: Mapping[str, Record], folder: Path) -> Path:
    """Write folder/results.html, one file with everything in it, and its figures as folder/figures/*.png, too."""
    sections = [_section(name, record) for name, record in records.items()]
    images = {name: drawn(picture) for section in sections for name, picture in section["pictures"].items()}
    html = page(
        sections=sections,
        images={name: base64.b64encode(image).decode() for name, image in images.items()},
        style=styles("report/charts/charts.css", "report/page.css"),
    )
    (folder / "figures").mkdir(parents=True, exist_ok=True)
    write_bytes(folder / PAGE, html.encode())  # first: it says whose the figures next to it are
    for name, image in images.items():
        write_bytes(folder / "figures" / f"{name}.png", image)
    return folder / PAGE


def _title_and_facts(name: str, record: Record) -> tuple[str, dict[str, str]]:
    """What the section of a record is called, and where it comes from: of a file of another name with that name."""
    title = experiments()[record.kind].title
    if name == record.kind:
        return title, record.origin
    return f"{title} ({name})", {"record": f"{name}.json", **record.origin}


def _section(name: str, record: Record) -> dict[str, Any]:
    """What page.html shows of a record. Figures of a record that has another name than its experiment begin with it."""
    experiment, (title, facts) = experiments()[record.kind], _title_and_facts(name, record)
    counts = Counter(claim.reading for claim in experiment.claims(record))
    told = ", ".join(f"{count} {reading}" for reading, count in sorted(counts.items()))
    return {
        "name": name,
        "title": title,
        "text": experiment.question,
        "answer": experiment.finding(record),
        "pictures": {of.name if name == record.kind else f"{name}-{of.name}": of for of in experiment.pictures(record)},
        "tables": experiment.tables(record),
        "last": f"Claims tested: {told}." if told else "",
        "facts": facts,
    }


def tables_page(records: Mapping[str, Record], folder: Path) -> str:
    """All tables of the records by name, then what is STORED in the folder, if there is any. Markdown.

    A record whose section is stored is not drawn again: it is of a command that made other tables.
    """
    sections = [HEAD]
    stored = (folder / STORED).read_text(encoding="utf-8").rstrip() if (folder / STORED).exists() else ""
    for name, record in records.items():
        experiment, (title, facts) = experiments()[record.kind], _title_and_facts(name, record)
        if f"## {title}\n" in stored:
            continue
        path = folder / f"{name}.json" if folder.is_dir() else folder
        told = [f"- {fact}: {value}" for fact, value in facts.items()]
        told.append(f"- sha256 of results/{path.name}: {record_hash(path.read_text(encoding='utf-8'))}")
        tables = (f"### {table.title}\n\n{_markdown(table)}" for table in experiment.tables(record))
        sections += [f"## {title}", experiment.question, *tables, "### Where this comes from", "\n".join(told)]
    return visible("\n\n".join([*sections, *filter(None, [stored])]), keep="\n") + "\n"


def record_hash(text: str) -> str:
    """What results/tables.md says of the record from which a section was made."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _markdown(table: TextTable) -> str:
    """The table without its title, and its note."""
    head, *rows = (f"| {' | '.join(map(visible, row))} |" for row in (table.columns, *table.rows))
    return "\n".join([head, "|" + "---|" * len(table.columns), *rows, "", table.note])
