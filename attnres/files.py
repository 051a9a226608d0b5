"""Files that a crash leaves old or new and never half, locks that die with their holder, the user's cache folder."""

from __future__ import annotations

import errno
import glob
import hashlib
import json
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from attnres.errors import UsageError

PARTIAL = ".partial"
"""Suffix of what is still being written. Users have files of that suffix, too: `is_partial` tells."""

LOCK = ".lock"
"""The file in a folder that who writes there holds."""

BLOCK = 1 << 26
"""Bytes of a file that are hashed at a time: where several processes share that work, each takes some of them."""

PIECE = 1 << 20
"""Bytes that are in memory meanwhile."""


@contextmanager
def replacement(path: Path) -> Iterator[Path]:
    """Yield a new file's name; when the block ends, what it wrote there replaces `path`, atomically and durably.

    Several processes may do so at once. Raises OSError that names `path` and never the other name.
    """
    partial = _beside(path)
    with named_errors(path, instead_of=partial):
        try:
            yield partial
            sync(partial)
            os.replace(partial, path)
            sync(path.parent)
        finally:
            partial.unlink(missing_ok=True)


def _beside(path: Path) -> Path:
    """A name beside `path` that nothing has yet."""
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}{PARTIAL}")


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


def read_json(content: str | bytes) -> Any:
    """What JSON says. Raises ValueError if it is none, or nested more deeply than Python can read."""
    try:
        return json.loads(content)
    except RecursionError:
        raise ValueError("nested too deeply") from None


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Fill a folder under another name; when the block ends, it appears at `path` whole, in place of what was there.

    That one is whole until it is out of the way, and is put back after an error. Between two renames neither is there.
    One process at a time: hold a lock where there may be others. What a killed one has left is removed first.
    """
    partial, aside = partial_folder(path), _beside(path)
    with named_errors(path, instead_of=partial), named_errors(path, instead_of=aside):
        for left in (partial, *path.parent.glob(f".{glob.escape(path.name)}.????????{PARTIAL}")):
            remove_folder(left)
        partial.mkdir(parents=True)
        try:
            yield partial
            _finish_files(partial)
            if path.is_dir():
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
    """Fill a folder that appears at `path` whole when the block ends, and never in place of anything with content.

    What a killed command has left of it is removed first.

    Raises:
        UsageError: another command is making it, or something is at `path`, before the block or after it.
    """

    def refuse() -> None:
        raise UsageError(f"{path}: another command is writing it; wait for it or give another folder")

    if os.path.lexists(path):  # a link to nowhere, too
        raise UsageError(f"{path} exists; give a new folder")
    # Names that nobody else gives: what has them may be removed.
    partial, lock = (path.with_name(f".{path.name}.attnres{suffix}") for suffix in (PARTIAL, LOCK))
    with named_errors(path, instead_of=lock), named_errors(path, instead_of=partial):
        path.parent.mkdir(parents=True, exist_ok=True)
        with locked(lock, taken=refuse):
            try:
                remove_folder(partial)
                partial.mkdir()
                yield partial
                _finish_files(partial)
                _rename_to_new(partial, path)
                sync(path.parent)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
                with suppress(OSError):  # Windows keeps a file that is open
                    lock.unlink()  # last and by its holder, so that nothing of ours is left for the next one to meet


def _rename_to_new(partial: Path, path: Path) -> None:
    try:
        os.rename(partial, path)  # fails on a file, and on a folder that is not empty
    except OSError:
        if os.path.lexists(path):
            raise UsageError(f"{path} was made by another command meanwhile; give a new folder") from None
        raise


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
    return path.with_name(path.name + PARTIAL)


def remove_folder(path: Path) -> None:
    """Remove a folder with all that is in it, if it is there."""
    if path.exists():
        shutil.rmtree(path)


def is_partial(name: str) -> bool:
    """Whether it is a name that `_beside` gives and nobody else: what has it after a crash is rubbish."""
    return re.fullmatch(rf"\..+\.[0-9a-f]{{8}}{re.escape(PARTIAL)}", name, re.DOTALL) is not None


def remove_partial(folder: Path, made: str = "") -> None:
    """Remove the rubbish of a crash from a folder in which no other process writes, and nothing else.

    made: a regular expression for the names of the folders that `new_folder` makes there.
    """
    for path in folder.glob(f"*{PARTIAL}"):
        if not path.is_dir():
            if is_partial(path.name):
                path.unlink()
        elif is_partial(path.name) or (made and re.fullmatch(made, path.name.removesuffix(PARTIAL))):
            remove_folder(path)


@contextmanager
def named_errors(path: Path, instead_of: Path | None = None) -> Iterator[None]:
    """Let every OSError name a file: `path` where it names none, as after a write, or one that `instead_of` stood for.

    Without it a user had to guess which disk is full.
    """
    try:
        yield
    except OSError as error:
        if error.errno is None:  # numpy's, which counts what it has written and keeps the system's reason to itself
            raise OSError(errno.EIO, f"not written whole ({error}); is the disk full?", str(path)) from error
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


def block_hashes(path: Path, first: int = 0, step: int = 1) -> dict[int, str]:
    """Hash every step-th block of a file, from block `first` on. Block number -> SHA-256."""
    hashes = {}
    with path.open("rb") as file:
        for number in range(first, -(-path.stat().st_size // BLOCK), step):
            file.seek(number * BLOCK)
            digest, left = hashlib.sha256(), BLOCK
            while left and (piece := file.read(min(left, PIECE))):
                digest.update(piece)
                left -= len(piece)
            hashes[number] = digest.hexdigest()
    return hashes


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
