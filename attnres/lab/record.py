"""The record of an experiment: everything its tables and figures are drawn from, small enough for the repository."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from datetime import date
from pathlib import Path
from typing import Any

from attnres.errors import UsageError
from attnres.files import write_text

Record = dict[str, Any]

SIGNIFICANT_DIGITS = 7


def header(
    kind: str, command: str, run_record: Mapping[str, Any], hours: float, commits: Iterable[str | None]
) -> Record:
    """What was run: the first entries of every record.

    run_record: config.json of one of the runs. hours: of computing, summed over this and earlier calls. commits: of
    the code of each run, which differ where a sweep was taken up again later.
    """
    return {
        "kind": kind,
        "command": command,
        "date": date.today().isoformat(),
        "hours": hours,
        "versions": run_record["versions"],
        "commits": list(dict.fromkeys(commit for commit in commits if commit)),
        "machine": run_record["machine"],
        "corpus": run_record["corpus"],
        "config": run_record["config"],
    }


def write_record(path: Path, record: Record) -> None:
    """Write the record with numbers rounded to 7 digits and NaN as null. Atomic."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(_rounded(record), allow_nan=False) + "\n")


def read_record(path: Path, kind: str) -> Record:
    """Raises UsageError if the file is no record of that kind."""
    try:
        record = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}; run `attnres {_COMMANDS[kind]}` first") from error
    except ValueError as error:
        raise UsageError(f"{path}: not valid JSON ({error})") from error
    if not isinstance(record, dict) or record.get("kind") != kind:
        raise UsageError(f"{path}: not a record of {kind}")
    for name in (*_HEADER, *_ENTRIES[kind]) if kind in _ENTRIES else ():
        if name not in record or record[name] == []:
            raise UsageError(f"{path}: a damaged record of {kind}, with nothing under {name!r}")
    return record


def read_records(folder: Path) -> dict[str, Record]:
    """The records in a folder by kind, as far as it holds them: KIND.json each."""
    return {
        kind: read_record(folder / f"{kind}.json", kind) for kind in _COMMANDS if (folder / f"{kind}.json").exists()
    }


_HEADER = ("command", "date", "hours", "versions", "machine", "corpus", "config")
_ENTRIES = {
    "ablation": ("embedding_stds", "cells"),
    "scaling": ("arms", "runs"),
    "dynamics": ("arms",),
    "prune": ("tokens", "baseline", "runs"),
}
"""What must be in a record, and not be empty."""

_COMMANDS = {"ablation": "ablate", "scaling": "scaling", "dynamics": "dynamics", "prune": "prune"}


def _rounded(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    if isinstance(value, float):
        return float(f"{value:.{SIGNIFICANT_DIGITS}g}") if math.isfinite(value) else None
    return value
