"""What a run writes while it goes: one JSON object per line."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from attnres.files import named_errors, sync, write_text

Record = dict[str, Any]


def read_metrics(path: Path) -> list[Record]:
    """Read all whole records; after a crash the last line may be half-written. Empty if there is no file."""
    records = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else ():
        with suppress(ValueError):
            records.append(json.loads(line))
    return records


class Metrics:
    """The metrics file of a run that stands at `step`: later records, of a run that crashed, are cut off."""

    writes = True
    """Of several processes, which all know the records, one writes them."""

    def __init__(self, path: Path, step: int) -> None:
        self.path = path
        self.records = [record for record in read_metrics(path) if record["step"] <= step]
        write_text(path, "".join(map(_line, self.records)))

    def of_kind(self, kind: str) -> list[Record]:
        return [record for record in self.records if record["kind"] == kind]

    def append(self, record: Record) -> None:
        self.records.append(record)
        if self.writes:
            with named_errors(self.path), self.path.open("a", encoding="utf-8") as file:
                file.write(_line(record))

    def sync(self) -> None:
        """Before a checkpoint of this step is written: a resumed run must find the records up to it."""
        if self.writes:
            sync(self.path)


def _line(record: Record) -> str:
    return json.dumps(record, allow_nan=False) + "\n"
