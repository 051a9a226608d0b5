"""Writing files so that a crash at any moment leaves either the old content or the new, never half of it."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from attnres.errors import UsageError

PARTIAL = ".partial"
"""Suffix of what is still being written. Whatever carries it after a crash is rubbish."""


def write_text(path: Path, text: str) -> None:
    """Replace the content of a file atomically and durably."""
    partial = path.with_name(path.name + PARTIAL)
    partial.write_text(text, encoding="utf-8")
    sync(partial)
    os.replace(partial, path)
    sync(path.parent)


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=1, allow_nan=False) + "\n")


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Fill a folder under another name; when the block ends, it appears at `path` whole, in place of what was there."""
    partial = path.with_name(path.name + PARTIAL)
    remove_folder(partial)
    partial.mkdir(parents=True)
    try:
        yield partial
        for file in partial.iterdir():
            sync(file)
        sync(partial)
        remove_folder(path)
        os.rename(partial, path)
        sync(path.parent)
    except OSError:
        # A full disk: give back the space of what could not be finished.
        shutil.rmtree(partial, ignore_errors=True)
        raise


def remove_folder(path: Path) -> None:
    if path.exists():
        shutil.rmtree(path)


def sync(path: Path) -> None:
    """Wait until a file's content, or a folder's list of names, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock, which the system takes back when the process dies. Raises UsageError if it is taken."""
    with (folder / ".lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(f"{folder}: another process is training in this folder; wait for it or stop it") from None
        yield
