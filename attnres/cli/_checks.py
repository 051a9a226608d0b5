"""What is looked at before the first second of work."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from attnres.errors import UsageError, check_count, install_command
from attnres.files import LOCK, locked, read_json, remove_partial


def is_figure(path: Path) -> bool:
    """Whether that is a PNG from matplotlib, as all figures are that the commands draw, and photographs are not."""
    with path.open("rb") as file:
        head = file.read(128)
    return head.startswith(b"\x89PNG") and b"tEXtSoftware\0Matplotlib" in head


def check_output_file(
    flag: str, path: Path | None, entries: Collection[str] = (), is_own: Callable[[Path], bool] = is_figure
) -> None:
    """Raise UsageError if no file can be written there, or if there is one that the command has not written.

    entries: of the JSON object that it writes; without any, `is_own` knows its files.
    """
    if path is None:
        return
    if path.is_dir() or not os.access(path.absolute().parent, os.W_OK):
        raise UsageError(f"{flag} {path}: no file can be written there; give another name")
    check_own_file(flag, path, entries, is_own)


def check_own_file(
    flag: str, path: Path, entries: Collection[str] = (), is_own: Callable[[Path], bool] = is_figure
) -> None:
    """Raise UsageError if there is a file that the command has not written. entries, is_own: of what it writes."""
    if path.exists() and not (path.is_file() and (_holds(path, entries) if entries else is_own(path))):
        raise UsageError(f"{flag} {path}: there is another file, which would be lost; give another name")


def _holds(path: Path, entries: Collection[str]) -> bool:
    try:
        record = read_json(path.read_bytes())
    except ValueError:
        return False
    return isinstance(record, dict) and record.keys() >= set(entries)


def check_own_page(out: Path, page: str, title: str, figures: Iterable[str], flag: str = "--out") -> None:
    """Raise UsageError if the folder of the flag holds that page or one of the figures, and not from the command.

    Its own page is known by how the title begins, and its figures by that page beside them.
    """
    file = out / page
    if file.is_file() and f"<title>{title}".encode() in file.read_bytes():
        return
    for taken in (file, *(out / "figures" / f"{name}.png" for name in figures)):
        if taken.exists():
            there = taken.relative_to(out)
            raise UsageError(f"{flag} {out}: there is another {there}, which would be lost; give another folder")


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Hold the folder of `--out`, so that no second command trains the runs that this one has planned there.

    A command that was killed holds nothing, and what it has left half-written of records and figures is removed.

    Raises:
        UsageError: another command holds it.
    """

    def refuse() -> None:
        raise UsageError(f"--out {folder}: another command is at work there; wait for it or give another --out")

    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / LOCK, taken=refuse):
        for place in (folder, folder / "figures"):
            remove_partial(place)
        yield


@contextmanager
def alone_at(record: Path) -> Iterator[None]:
    """Hold the file of `--record`, so that no second command writes over what this one adds to it.

    Raises UsageError if one does already.
    """

    def refuse() -> None:
        raise UsageError(f"--record {record}: another command is at work on it; wait for it or give another --record")

    record.parent.mkdir(parents=True, exist_ok=True)
    with locked(record.with_name(f".{record.name}{LOCK}"), taken=refuse):
        yield


def check_paths_named(arguments: Sequence[str]) -> None:
    """Raise UsageError on a `--data.paths` without any, as of a shell's empty variable: the default text is no answer.

    With a dataset it takes back the paths of a recipe.
    """
    following = dict(zip(arguments, [*arguments[1:], "--"], strict=False))
    dataset = any(argument.partition("=")[0] == "--data.dataset" for argument in arguments)
    if following.get("--data.paths", "").startswith("--") and not dataset:
        raise UsageError("--data.paths names none; give at least one, or leave it out for the default text")


def check_installed(command: str, extra: str, *modules: str) -> None:
    """Raise UsageError where one of an extra's modules is not installed; before the rest of the command is imported."""
    if missing := [name for name in modules if importlib.util.find_spec(name) is None]:
        raise UsageError(f"{command} needs {', '.join(missing)}, not installed here: {install_command(extra)}")


def check_at_least(least: int, **options: int | None) -> None:
    """Raise UsageError if an option that is given is less, or more than anything is counted to."""
    for name, value in options.items():
        if value is not None:
            check_count(name, value, least=least)


def read_text(flag: str, path: Path) -> str:
    """The text of a file that an option names. Raises UsageError if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise UsageError(f"{flag} {path}: cannot be read as text ({error})") from None
