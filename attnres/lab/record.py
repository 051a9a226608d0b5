"""Records: everything that tables and figures are drawn from, small enough for the repository.

A record is a frozen dataclass. Its file is JSON with the same names, measured numbers rounded to 7 digits and NaN as
null; fields that hold their default are left out. Nothing else reads or writes these files.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import shlex
import sys
import types
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar, Union, get_args, get_origin, get_type_hints

from attnres.connections import file_digest
from attnres.errors import UsageError
from attnres.files import read_json, write_text
from attnres.train import RunConfig, config_to_json
from attnres.train.folder import RunFolder
from attnres.train.jsonconfig import flat_fields

SIGNIFICANT_DIGITS = 7
"""How many measured numbers have: those of fields that are declared a float."""

Given = Annotated[float, "given"]
"""An option's number. It is written as it is: a command goes on with a record that has the same one."""


@dataclass(frozen=True, kw_only=True)
class Stored:
    """What has a file of its own.

    Raises ValueError where a field that must hold something is empty, or an entry is there twice, as in a file that was
    put together from two.
    """

    kind: ClassVar[str]
    """The first entry of the file: what it is."""
    written_by: ClassVar[str]
    """The command that writes it."""
    remedy: ClassVar[str] = "put a copy back, or delete it: the same command fills it again from its runs"
    """What to do where the file is damaged."""
    never_empty: ClassVar[tuple[str, ...]] = ()
    told_apart: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """By field, the names that no two of its entries have alike."""

    def __post_init__(self) -> None:
        for name in self.never_empty:
            if not getattr(self, name):
                raise ValueError(f"with nothing under {name!r}")
        for name, names in self.told_apart.items():
            refuse_repeated(getattr(self, name), names, name)


@dataclass(frozen=True, kw_only=True)
class Record(Stored):
    """What was run: the first entries of every experiment's record."""

    command: str
    date: str
    hours: float
    """Hours of computing, one thread each, summed over this and earlier calls."""
    versions: Mapping[str, Any]
    commits: tuple[str, ...] = ()
    """The commits of the runs' code, which differ where a sweep was taken up again later."""
    machine: Mapping[str, Any]
    corpus: Mapping[str, Any]
    config: Mapping[str, Any]
    files: Mapping[str, Any] | None = None
    """The hash of each arm's file, of arms that have one; kept where a sweep goes on from its record."""
    start: str | None = None
    """The checksum of the weights that the first of the runs began with, if it had another run's."""

    @property
    def measured(self) -> set[tuple[str, int]]:
        """(arm, seed) of each run in it, where the record is written anew from its runs and not gone on with."""
        return set()

    @property
    def origin(self) -> dict[str, str]:
        """What was run, when and on what, to be shown."""
        return {
            "command": self.command,
            "date": self.date,
            "commit": ", ".join(self.commits or [str(self.versions.get("commit"))]),
            "computing": f"{self.hours:.1f} hours of one thread",
            "machine": ", ".join(f"{name} {value}" for name, value in self.machine.items()),
            "corpus": f"{self.corpus.get('description')}, sha256 {self.corpus.get('sha256')}",
        }


def command() -> str:
    """The one that runs now."""
    return shlex.join(["attnres", *sys.argv[1:]])


def header(run_record: Mapping[str, Any], seconds: float, commits: Iterable[str | None]) -> dict[str, Any]:
    """The fields of `Record` for what this process has run.

    run_record: config.json of one of the runs. seconds: of computing. commits: of the code of each run.
    """
    return {
        "command": command(),
        "date": date.today().isoformat(),
        "hours": seconds / 3600,
        "versions": run_record["versions"],
        "commits": tuple(dict.fromkeys(commit for commit in commits if commit)),
        "machine": run_record["machine"],
        "corpus": run_record["corpus"],
        "config": run_record["config"],
        "start": run_record.get("start"),
    }


def refuse_repeated(entries: Iterable[Any], names: tuple[str, ...], where: str) -> None:
    """Raise ValueError if two of the entries have all of these fields alike."""
    of = Counter(tuple(getattr(entry, name) for name in names) for entry in entries)
    for values, count in of.items():
        if count > 1:
            told = ", ".join(f"{name} {value}" for name, value in zip(names, values, strict=True))
            raise ValueError(f"with {told} {count} times under {where!r}")


S = TypeVar("S", bound=Stored)
T = TypeVar("T")


def write_record(path: Path, record: Stored) -> None:
    """Write the record, atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps({"kind": record.kind, **_plain(record)}, allow_nan=False) + "\n")


def read_record(path: Path, cls: type[S]) -> S:
    """Read a record. Raises UsageError if the file is none of that class, or a damaged one."""
    try:
        data = read_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}; run `attnres {cls.written_by}` first") from error
    except ValueError as error:
        raise UsageError(f"{path}: not valid JSON ({error}); {cls.remedy}") from error
    if not isinstance(data, dict) or data.pop("kind", None) != cls.kind:
        raise UsageError(f"{path}: not a record of {cls.kind}")
    try:
        return from_json(cls, data)
    except ValueError as error:
        raise UsageError(f"{path}: a damaged record of {cls.kind}, {error}; {cls.remedy}") from error


def refuse_other_sweep(
    path: Path, record: Record, arms: Iterable[str], text: str, pairs: Mapping[str, tuple[Any, Any]]
) -> None:
    """Raise UsageError if a command may not go on with the record: what it would add does not compare.

    arms: those of the command. text: the hash of its corpus. pairs: by the name of what else all runs have in common,
    what the record says and what the command does.
    """
    instead = "or choose another --record and --out"
    if differing := [name for name, (there, here) in pairs.items() if there != here]:
        raise UsageError(
            f"{path} holds a sweep with another {' and another '.join(differing)}; repeat its options to go on with "
            f"it, {instead}"
        )
    if (recorded := record.corpus.get("sha256")) not in (None, text):
        raise UsageError(
            f"{path} holds runs on another text, {record.corpus.get('description')}, whose hash begins with "
            f"{recorded:.8}; this one's begins with {text:.8}: restore that text, {instead}"
        )
    start = record.config.get("start_from")
    if record.start and start and RunFolder(start).weights() not in (None, record.start):
        raise UsageError(
            f"{start} has other weights than when the runs in {path} began with them, as after more training; put "
            f"those back, {instead}"
        )
    for arm, digest in (record.files or {}).items():
        if arm in arms and file_digest(arm) != digest:
            raise UsageError(f"the file of {arm} has changed since its runs in {path}; restore it, {instead}")


def config_pairs(there: RunConfig, here: RunConfig) -> dict[str, tuple[Any, Any]]:
    """Each field of two configurations, as `refuse_other_sweep` compares it."""
    one, two = flat_fields(config_to_json(there)), flat_fields(config_to_json(here))
    return {name: (one.get(name), two.get(name)) for name in {**one, **two}}


def files_of(arms: Iterable[str]) -> dict[str, str]:
    """The hash of the file of each connection that is written FILE.py:CLASS."""
    return {arm: digest for arm in arms if (digest := file_digest(arm))}


def kind_of(path: Path) -> str | None:
    """What a file says that it is a record of; None if it says nothing. Raises UsageError if it is cut or damaged."""
    try:
        content = path.read_bytes()
        data = read_json(content)
    except OSError:
        return None
    except ValueError as error:
        if b'"kind"' in content:
            raise UsageError(f"{path}: not valid JSON ({error}); put a copy back, or take it away") from error
        return None
    kind = data.get("kind") if isinstance(data, dict) else None
    return kind if isinstance(kind, str) else None


def from_json(cls: type[T], data: Any, where: str = "") -> T:
    """A dataclass from its entries. Raises ValueError, naming the entry that is missing, unknown or of another type."""
    if not isinstance(data, dict):
        raise ValueError(f"{where or 'which'} is no JSON object")
    hints, prefix = _hints(cls), f"{where}." if where else ""
    if unknown := [name for name in data if name not in hints]:
        raise ValueError(f"with an unknown entry {prefix}{unknown[0]}")
    fields = {}
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]
        if field.name in data:
            fields[field.name] = _value(hints[field.name], data[field.name], prefix + field.name)
        elif field.default is dataclasses.MISSING:
            raise ValueError(f"with nothing under {prefix + field.name!r}")
    try:
        return cls(**fields)
    except ValueError as error:
        raise ValueError(f"{error} in {where}" if where else str(error)) from error


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    names = {field.name for field in dataclasses.fields(cls)}
    return {name: hint for name, hint in get_type_hints(cls, include_extras=True).items() if name in names}


def _value(hint: Any, value: Any, where: str) -> Any:
    """The JSON value as what the field is declared to hold."""
    origin, arguments = get_origin(hint), get_args(hint)
    if dataclasses.is_dataclass(hint):
        return from_json(hint, value, where)  # type: ignore[arg-type]
    if origin is Annotated:
        return _value(arguments[0], value, where)
    if origin in (Union, types.UnionType):  # always X | None
        return None if value is None else _value(arguments[0], value, where)
    if origin is tuple and isinstance(value, list):
        kinds = [arguments[0]] * len(value) if arguments[-1] is ... else arguments
        if len(kinds) == len(value):
            return tuple(_value(kind, value[i], f"{where}[{i}]") for i, kind in enumerate(kinds))
    elif hint is float:
        if value is None:
            return math.nan
        if isinstance(value, float) or _is_whole(value):
            return value
    elif _is_whole(value) if hint is int else type(value) is (dict if origin is Mapping else hint):
        return value
    raise ValueError(f"with {value!r:.40} under {where!r}")


def _is_whole(value: Any) -> bool:
    """Whether it is a whole number that can be reckoned with: a larger one than any float raises OverflowError."""
    return type(value) is int and abs(value) <= sys.float_info.max


def _plain(value: Any, measured: bool = False) -> Any:
    """The value as JSON has it, its numbers rounded if they are measured ones."""
    if dataclasses.is_dataclass(value):
        hints = _hints(type(value))  # type: ignore[arg-type]
        fields = [(field, getattr(value, field.name)) for field in dataclasses.fields(value)]
        return {
            field.name: _plain(item, _is_measured(hints[field.name]))
            for field, item in fields
            if not _same(item, field.default)
        }
    if isinstance(value, Mapping):
        return {str(key): _plain(item, measured) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, measured) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return float(f"{value:.{SIGNIFICANT_DIGITS}g}") if measured and isinstance(value, float) else value


def _is_measured(hint: Any) -> bool:
    """Whether a field so declared holds measured numbers."""
    return hint is float or (get_origin(hint) is not Annotated and any(map(_is_measured, get_args(hint))))


def _same(value: Any, default: Any) -> bool:
    """Whether the field holds its default; NaN equals itself here."""
    return value == default or (value != value and default != default)
