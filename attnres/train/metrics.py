"""What a run writes while it goes: one JSON object per line."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from attnres.files import named_errors, read_json, write_text

Record = dict[str, Any]


def read_metrics(path: Path) -> list[Record]:
    """Read all whole records; after a crash the last line may be half-written. Empty if there is no file."""
    records = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else ():
        with suppress(ValueError):
            if isinstance(record := read_json(line), dict) and "step" in record:
                records.append(record)
    return records


class Records:
    """The metrics of a run in memory alone, for the processes that do not write."""

    def __init__(self, records: list[Record]) -> None:
        self.records = records

    def append(self, record: Record) -> None:
        self.records.append(record)

    def sync(self) -> None:
        """Nothing is on its way to a disk."""

    def of_kind(self, kind: str) -> list[Record]:
        return [record for record in self.records if record["kind"] == kind]


class Metrics(Records):
    """The metrics file of a run that stands at `step`: later records, of a run that crashed, are cut off."""

    def __init__(self, path: Path, step: int) -> None:
        self.path = path
        super().__init__([record for record in read_metrics(path) if record["step"] <= step])
        kept = "".join(map(_line, self.records))
        if not path.exists() or path.read_bytes() != kept.encode():
            write_text(path, kept)
        self._file = path.open("ab", buffering=0)

    def append(self, record: Record) -> None:
        super().append(record)
        line = _line(record).encode()
        try:
            while line:  # an almost full disk takes a part, and says so only when it gets the rest
                line = line[self._file.write(line) :]
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.path)) from error

    def sync(self) -> None:
        """Before a checkpoint of this step is written: a resumed run must find the records up to it.

        Raises FileNotFoundError where the run's folder was moved or deleted: a checkpoint would bring half of it back.
        """
        self.path.stat()
        with named_errors(self.path):
            os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


def _line(record: Record) -> str:
    return json.dumps(record, allow_nan=False) + "\n"
