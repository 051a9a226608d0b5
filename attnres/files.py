"""Atomic writes, locks that end with their process, and the user's cache folder."""

from __future__ import annotations

import errno
import json
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from attnres.errors import UsageError

PARTIAL = ".attnres-partial"
"""Suffix of what is still being written: after a crash it is rubbish, which may be removed."""

LOCK = ".lock"
"""Lock file held by the process that writes in this folder."""


@contextmanager
def replacement(path: Path) -> Iterator[Path]:
    """Yield a new file's name; when the block ends, what it wrote there replaces `path`, atomically and durably.

    Several processes may do so at once. Raises OSError that names `path` and never the other name.
    """
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}{PARTIAL}")
    with named_errors(path, instead_of=partial):
        try:
            yield partial
            sync(partial)
            os.replace(partial, path)
            sync(path.parent)
        finally:
            partial.unlink(missing_ok=True)


def write_bytes(path: Path, content: bytes) -> None:
    """Replace the content of a file."""
    with replacement(path) as partial:
        partial.write_bytes(content)


def write_text(path: Path, text: str) -> None:
    """Replace the content of a file, in UTF-8."""
    write_bytes(path, text.encode())


def write_json(path: Path, value: Any) -> None:
    """Replace the content of a file. Raises ValueError on a number that is not finite."""
    write_text(path, json.dumps(value, indent=1, allow_nan=False) + "\n")


RUN = "run"


def folder_kind(path: Path) -> str:
    """Say what config.json makes of a folder: a `RUN` of this library, a model type of transformers, or "" for neither.

    Raises UsageError on a config.json that is not JSON.
    """
    file = path / "config.json"
    if not file.is_file():
        return ""
    try:
        record = json.loads(file.read_bytes())
    except ValueError as error:
        raise UsageError(f"{file}: not valid JSON ({error}); give another folder") from None
    if not isinstance(record, dict):
        return ""
    return RUN if {"config", "corpus", "versions"} <= record.keys() else record.get("model_type", "")


@contextmanager
def new_folder(path: Path, replaces: bool = True) -> Iterator[Path]:
    """Fill a folder under another name; when the block ends, it appears at `path` whole, in place of what was there.

    That one is put back after an error. Between two renames neither is there. One process at a time: hold a lock where
    there may be others. What a killed one has left is removed first.

    replaces: False where nothing with content may be at `path`; the system's error says so.
    """
    partial, aside = partial_folder(path), path.with_name(f".{path.name}.old{PARTIAL}")
    with named_errors(path, instead_of=partial):
        for left in (partial, aside):
            remove_folder(left)
        partial.mkdir(parents=True)
        try:
            yield partial
            _finish_files(partial)
            if replaces and path.is_dir():
                os.rename(path, aside)
            os.rename(partial, path)
            sync(path.parent)
        except BaseException:
            if aside.exists() and not path.exists():
                os.rename(aside, path)
            shutil.rmtree(partial, ignore_errors=True)  # a full disk gets back the space of what was not finished
            raise
        finally:
            if path.exists():
                shutil.rmtree(aside, ignore_errors=True)


@contextmanager
def added_folder(path: Path) -> Iterator[Path]:
    """Fill a folder that appears at `path` whole when the block ends.

    Raises UsageError where something is at `path`.
    """
    if os.path.lexists(path):  # a link to nowhere, too
        raise UsageError(f"{path} exists; give a new folder")
    with new_folder(path, replaces=False) as partial:
        yield partial


def _finish_files(folder: Path) -> None:
    """Bring what is in a new folder onto the disk, readable by all whom the umask lets read the folder.

    safetensors keeps what it writes to its owner, so that nobody else, a server's account for one, could load a model.
    """
    readable = folder.stat().st_mode & 0o444
    for path in folder.rglob("*"):
        mode = path.stat().st_mode
        if readable & ~mode:
            path.chmod(stat.S_IMODE(mode) | readable)
        sync(path)
    sync(folder)


def partial_folder(path: Path) -> Path:
    """Where `new_folder` fills the folder that will appear at `path`."""
    return path.with_name(f".{path.name}{PARTIAL}")


def remove_folder(path: Path) -> None:
    """Remove a folder with all that is in it, if it is there."""
    if path.exists():
        shutil.rmtree(path)


def remove_partial(folder: Path) -> None:
    """Remove the rubbish of a crash from a folder in which no other process writes."""
    for path in folder.glob(f".*{PARTIAL}"):
        remove_folder(path) if path.is_dir() else path.unlink()


@contextmanager
def named_errors(path: Path, instead_of: Path | None = None) -> Iterator[None]:
    """Let every OSError name a file: `path` where it names none, as after a write, or one that `instead_of` stood for.

    Without it a user had to guess which disk is full.
    """
    try:
        yield
    except OSError as error:
        names = str(error.filename or path), str(instead_of or path)
        error.filename = names[0].replace(names[1], str(path))
        del error.filename2  # str() would show a None, too
        raise
    except Exception as error:
        code = re.search(r"os error (\d+)", str(error))
        if type(error).__name__ != "SafetensorError" or code is None:  # which tells the system's error as text alone
            raise
        raise OSError(int(code[1]), os.strerror(int(code[1])), str(path)) from error


def sync(path: Path) -> None:
    """Wait until a file's content, or a folder's list of names, is on the disk."""
    if os.name != "posix" and path.is_dir():
        return  # it cannot be opened there
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def locked(path: Path, taken: Callable[[], object]) -> Iterator[None]:
    """Hold the lock of that file, which the system takes back when the process dies.

    taken: called if another process holds it; what it raises is raised, and else the lock is waited for.
    """
    from filelock import FileLock, Timeout  # torch brings it; only who locks waits for its import

    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        taken()
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def cache_folder() -> Path:
    """The user's folder for what can be made again: attnres in $XDG_CACHE_HOME or ~/.cache, on every system.

    Raises:
        OSError: there is no home folder, as for a user that a container does not know.
    """
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "attnres"
    except RuntimeError:
        raise FileNotFoundError(errno.ENOENT, "there is no home folder to cache in; set XDG_CACHE_HOME") from None
