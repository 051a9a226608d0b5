"""What is looked at before the first second of work."""

from __future__ import annotations

import json
import os
from collections.abc import Collection
from pathlib import Path

from attnres.errors import UsageError

PNG = b"\x89PNG"


def check_output_file(flag: str, path: Path | None, entries: Collection[str] = ()) -> None:
    """Raise UsageError if no file can be written there, or if there is one that the command has not written.

    entries: of the JSON object that it writes; without any it writes a PNG.
    """
    if path is None:
        return
    if path.is_dir():
        raise UsageError(f"{flag} {path}: it is a folder; give the name of a file")
    folder = path.absolute().parent
    if not folder.is_dir():
        raise UsageError(f"{flag} {path}: there is no folder {folder} to write to")
    if not os.access(folder, os.W_OK):
        raise UsageError(f"{flag} {path}: {folder} cannot be written; choose another place")
    if path.exists() and not _holds(path, entries):
        raise UsageError(f"{flag} {path}: there is another file, which would be lost; give another name")


def _holds(path: Path, entries: Collection[str]) -> bool:
    content = path.read_bytes()
    if not entries:
        return content.startswith(PNG)
    try:
        record = json.loads(content)
    except ValueError:
        return False
    return isinstance(record, dict) and record.keys() >= set(entries)


def check_output_folder(flag: str, path: Path | None) -> None:
    """Raise UsageError if that is no folder, or if neither it nor one above it can be written."""
    if path is None:
        return
    existing = next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.exists())
    if not existing.is_dir():
        raise UsageError(f"{flag} {path}: {existing} is a file; give a folder")
    if not os.access(existing, os.W_OK):
        raise UsageError(f"{flag} {path}: {existing} cannot be written; choose another place")


def check_at_least(least: int, **options: int | None) -> None:
    """Raise UsageError if an option that is given is less."""
    for name, value in options.items():
        if value is not None and value < least:
            raise UsageError(f"--{name.replace('_', '-')} must be at least {least}, not {value}")


def read_text(flag: str, path: Path) -> str:
    """The text of a file that an option names. Raises UsageError if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise UsageError(f"{flag} {path}: cannot be read as text ({error})") from None
