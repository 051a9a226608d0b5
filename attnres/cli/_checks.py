"""What is looked at before the first second of work."""

from __future__ import annotations

import os
from pathlib import Path

from attnres.errors import UsageError


def check_output_file(flag: str, path: Path | None) -> None:
    """Raise UsageError if no file can be written there."""
    if path is None:
        return
    if path.is_dir():
        raise UsageError(f"{flag} {path}: it is a folder; give the name of a file")
    folder = path.absolute().parent
    if not folder.is_dir():
        raise UsageError(f"{flag} {path}: there is no folder {folder} to write to")
    if not os.access(folder, os.W_OK):
        raise UsageError(f"{flag} {path}: {folder} cannot be written; choose another place")


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
