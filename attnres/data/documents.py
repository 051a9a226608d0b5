"""Documents: files as text, and rows of datasets."""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from attnres.data.dataconfig import DataConfig
from attnres.errors import UsageError, install_command
from attnres.files import LOCK

RECORD_SUFFIXES = (".jsonl", ".ndjson")


@dataclass(frozen=True)
class Counts:
    """What was read."""

    documents: int
    """With text: empty ones do not count."""
    bytes: int
    """UTF-8 bytes of text."""
    skipped: int
    """Files inside folders that are not text."""


class Documents(Protocol):
    """The texts of a corpus, one after the other."""

    families: Sequence[Sequence[int]] = ()
    """The numbers of documents that go to the same part although their texts are not equal."""

    def identity(self) -> list[Any]:
        """Return JSON that changes whenever the text may have; cheap: reads no text."""
        ...

    def read(self) -> Iterator[str | None]:
        """Yield the texts in a fixed order, without half characters (surrogates); None for a file that was left out."""
        ...

    def describe(self, counts: Counts) -> str: ...


class TextFiles(Documents):
    """Files of UTF-8 text, one document each; of JSON lines, one for each line.

    files: each with whether the user named it, so that it must be text; others are left out where they are not.
    field: what holds the text of a line of JSON.
    """

    def __init__(self, label: str, files: Mapping[Path, bool], field: str) -> None:
        self.label = label
        self.files = files
        self.field = field

    def identity(self) -> list[Any]:
        return ["files", self.field, *([*_stamp(path), named] for path, named in self.files.items())]

    def read(self) -> Iterator[str | None]:
        for path, named in self.files.items():
            try:
                yield from self._texts(path, path.read_bytes().decode("utf-8"))
            except UnicodeDecodeError as error:
                if named:
                    where = f"byte {error.start}"
                    raise UsageError(f"{path} is not UTF-8 text ({where}); convert it or leave it out") from None
                yield None

    def _texts(self, path: Path, text: str) -> list[str]:
        # Not `splitlines`: JSON may hold other ends of lines.
        lines = [
            (number, line) for number, line in enumerate(text.removeprefix("\ufeff").split("\n"), 1) if line.strip()
        ]
        if path.suffix not in RECORD_SUFFIXES and not (lines and _is_record(lines[0][1], self.field)):
            return [text]
        return [_text_of(line, self.field, f"line {number} of {path}") for number, line in lines]

    def describe(self, counts: Counts) -> str:
        noun = "file" if counts.documents <= len(self.files) else "document"
        skipped = f" ({counts.skipped:,} left out: not UTF-8 text)" if counts.skipped else ""
        return f"{self.label}, {describe_counts(counts, noun)}{skipped}"


def _is_record(line: str, field: str) -> bool:
    """Whether it is a document as JSON: many a file of such lines is called .json or .txt."""
    try:
        return line.startswith("{") and field in json.loads(line)
    except ValueError:
        return False


def _text_of(line: str, field: str, where: str) -> str:
    try:
        text = json.loads(line)[field] or ""
    except ValueError:
        raise UsageError(f"{where} is not JSON; correct the line or leave the file out") from None
    except KeyError:
        raise UsageError(f"{where} has no field {field!r}; name the right one with --data.dataset-column") from None
    # An escape can name half a character, which UTF-8 cannot write.
    return text.encode("utf-8", errors="replace").decode()


def expand(patterns: tuple[str, ...]) -> dict[Path, bool]:
    """The files that paths and globs stand for, each with whether it is named itself; a folder's are sorted.

    Hidden files are left out, and what commands of ours have written there: no run trains on another's metrics.
    """
    found: dict[Path, tuple[Path, bool]] = {}
    for pattern in patterns:
        path = Path(pattern).expanduser()
        exists = os.path.lexists(path)
        matches = [path] if exists else [Path(match) for match in sorted(glob.glob(str(path), recursive=True))]
        if not matches:
            wrong = "nothing matches" if glob.has_magic(pattern) else "there is no file or folder"
            raise UsageError(f"{wrong} {pattern}; check the path")
        for match in matches:
            root = match if exists else _without_magic(path)
            for file in walk(match, lambda name: name.startswith(".") or name == "__pycache__"):
                named = exists and file == match
                if file == root or not _is_output(file, root):
                    found[file.resolve()] = file, named or found.get(file.resolve(), (file, False))[1]
    if not found:
        raise UsageError(f"there are no files in {shorten(patterns)}; give files of text")
    return dict(found.values())


def _without_magic(pattern: Path) -> Path:
    """The folder that a glob begins in."""
    parts = pattern.parts
    return Path(*parts[: next(number for number, part in enumerate(parts) if glob.has_magic(part))])


def _is_output(file: Path, root: Path) -> bool:
    """Whether the file is a run's: a lock stays in each folder that holds runs.

    In folders below the root alone: a run's folder that is given by name is meant.
    """
    return any((root / folder / LOCK).is_file() for folder in list(file.relative_to(root).parents)[:-1])


def walk(root: Path, skip: Callable[[str], bool]) -> list[Path]:
    """The file, or the regular files under a folder, sorted by their parts, without those whose name `skip` takes."""
    if not root.is_dir():
        return [root] if root.is_file() else []

    def refuse(error: OSError) -> None:
        raise error

    found = []
    for folder, folders, names in os.walk(root, onerror=refuse):
        folders[:] = [name for name in folders if not skip(name)]
        found += [path for name in names if not skip(name) and (path := Path(folder, name)).is_file()]
    return sorted(found, key=lambda path: path.relative_to(root).parts)


class DatasetRows(Documents):
    """Rows of a dataset of the `datasets` library, one document each: what `load_dataset` or `load_from_disk` reads.

    That is a local file (csv, json, jsonl, parquet, arrow), a folder of such files, a folder that `save_to_disk` made,
    or a name on the hub. What `datasets` itself stores goes into the cache folder.
    """

    def __init__(self, config: DataConfig, cache: Path) -> None:
        assert config.dataset
        self.name = config.dataset
        self.config = config
        self.cache = cache
        self.path = Path(config.dataset).expanduser()

    def identity(self) -> list[Any]:
        c = self.config
        local = [_stamp(file) for file in walk(self.path, lambda name: False)]
        return ["dataset", self.name, c.dataset_config, c.dataset_split, c.dataset_column, local]

    def read(self) -> Iterator[str | None]:
        try:
            import datasets
        except ImportError:
            raise UsageError(f"a dataset needs the datasets library: {install_command('hf')}") from None
        column = self.config.dataset_column
        rows = self._load(datasets).select_columns([column])
        for batch in rows.iter(batch_size=1000):
            yield from (text or "" for text in batch[column])

    def describe(self, counts: Counts) -> str:
        return f"dataset {self.name}, split {self.config.dataset_split}, {describe_counts(counts, 'document')}"

    def _load(self, datasets: Any) -> Any:
        split = self.config.dataset_split
        if (self.path / "dataset_dict.json").is_file() or (self.path / "state.json").is_file():
            rows = datasets.load_from_disk(str(self.path))
            return rows[split] if isinstance(rows, dict) else rows
        cache = str(self.cache / "datasets")
        place, files = str(self.path) if self.path.exists() else self.name, None
        if self.path.is_file():  # as one of its folder's: `datasets` then knows its kind
            place, files = str(self.path.parent), self.path.name
        return datasets.load_dataset(place, self.config.dataset_config, split=split, data_files=files, cache_dir=cache)


def _stamp(path: Path) -> list[Any]:
    """What tells whether a file is still the same."""
    stat = path.stat()
    return [str(path.resolve()), stat.st_size, stat.st_mtime_ns]


def shorten(names: Sequence[str]) -> str:
    """Join the first three names."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def describe_counts(counts: Counts, noun: str) -> str:
    """How many documents and bytes: "612 files, 11.3 MB"."""
    return f"{_count(counts.documents, noun)}, {_size(counts.bytes)}"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _size(number: int) -> str:
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if number >= scale:
            return f"{number / scale:.1f} {unit}"
    return _count(number, "byte")
