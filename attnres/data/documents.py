"""Documents: files as text, and rows of datasets."""

from __future__ import annotations

import codecs
import errno
import glob
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from attnres.data.config import DataConfig
from attnres.data.hub import hub_or_cache
from attnres.errors import UsageError, first_line, install_command
from attnres.files import LOCK, read_json

DATASET_FORMATS = {
    ".csv": "csv",
    ".tsv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".parquet": "parquet",
    ".txt": "text",
    ".arrow": "arrow",
}
RECORD_SUFFIXES = (".jsonl", ".ndjson")
# UTF-32 first: its mark begins with UTF-16's. A mark of UTF-8 stays in plain text, as a character.
MARKS = {
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
UNPACK, CONVERT, AS_DATASET = "unpack it first", "convert it to text first", "give it as --data.dataset"
# How files begin that are often given for text, what they are, and what to do.
BINARY = {
    b"\x1f\x8b": ("gzip-compressed", UNPACK),
    b"BZh": ("bzip2-compressed", UNPACK),
    b"\xfd7zXZ": ("xz-compressed", UNPACK),
    b"\x28\xb5\x2f\xfd": ("zstd-compressed", UNPACK),
    b"PK\x03\x04": ("a ZIP archive or an office document", "unpack or convert it first"),
    b"7z\xbc\xaf": ("a 7-Zip archive", UNPACK),
    b"PAR1": ("a Parquet file", AS_DATASET),
    b"ARROW1": ("an Arrow file", AS_DATASET),
    b"%PDF": ("a PDF", CONVERT),
    b"\xd0\xcf\x11\xe0": ("an office document", CONVERT),
    b"SQLite format 3": ("an SQLite database", CONVERT),
    b"\x89HDF": ("an HDF5 file", CONVERT),
    b"\x93NUMPY": ("a NumPy array", CONVERT),
}


@dataclass(frozen=True)
class Counts:
    """What was read."""

    documents: int
    """With text: empty ones do not count."""
    bytes: int
    """UTF-8 bytes of text."""
    skipped: int
    """Files inside folders that are not text."""


class Document(NamedTuple):
    """One text of a corpus."""

    text: str | None
    """None for a file that was left out. Has no half characters (surrogates)."""
    work: int
    """The amount of work that reading it was, in the unit of `Documents.total`."""
    name: str


class Documents(Protocol):
    """The texts of a corpus, one after the other."""

    @property
    def total(self) -> int:
        """The sum of all documents' work; 0 when unknown."""
        ...

    @property
    def families(self) -> Sequence[Sequence[int]]:
        """The numbers of documents that go to the same part although their texts are not equal."""
        ...

    def identity(self) -> list[Any]:
        """Return JSON that changes whenever the text may have; cheap: reads no text."""
        ...

    def read(self) -> Iterator[Document]:
        """Yield the documents in a fixed order."""
        ...

    def describe(self, counts: Counts) -> str: ...


@dataclass(frozen=True)
class TextFile:
    path: Path
    size: int
    mtime: int
    named: bool
    """Named by the user, so it must be text; files found in a folder or by a glob may be skipped."""

    @classmethod
    def at(cls, path: Path, named: bool = False) -> TextFile:
        stat = path.stat()
        return cls(path, stat.st_size, stat.st_mtime_ns, named)

    @property
    def holds_records(self) -> bool:
        return self.path.suffix in RECORD_SUFFIXES


class TextFiles:
    """Files as text, one document each; of JSON lines, one for each line.

    Text is UTF-8, or UTF-16 or UTF-32 with a byte-order mark. field: what holds the text of a line of JSON.
    """

    families = ()

    def __init__(self, label: str, files: list[TextFile], field: str) -> None:
        self.label = label
        self.files = files
        self.field = field
        self.total = sum(file.size for file in files)

    def identity(self) -> list[Any]:
        field = [self.field] if any(file.holds_records for file in self.files) else []
        files = ([str(file.path.resolve()), file.size, file.mtime, file.named] for file in self.files)
        return ["files", *field, *files]

    def read(self) -> Iterator[Document]:
        for file in self.files:
            try:
                text = _decode(file.path.read_bytes())
                unmarked = text.removeprefix("\ufeff")
                if file.named and file.path.suffix == ".json" and unmarked.lstrip().startswith("["):
                    raise _BadContent(
                        "is a JSON array, which would be trained on as it stands, brackets and all; give it as "
                        "--data.dataset or as JSON lines (.jsonl), or rename it to train on plain text"
                    )
                texts: list[str | None] = [*_texts_of_lines(unmarked, self.field)] if file.holds_records else [text]
            except OSError as error:
                raise UsageError(f"cannot read {file.path}: {error.strerror}") from None
            except _BadContent as reason:
                if file.named or not isinstance(reason, _NotText):
                    raise UsageError(f"{file.path} {reason}") from None
                texts = [None]
            for number, text in enumerate(texts):
                yield Document(text, 0 if number else file.size, str(file.path))

    def describe(self, counts: Counts) -> str:
        noun = "document" if any(file.holds_records for file in self.files) else "file"
        skipped = f" ({counts.skipped:,} left out: not UTF-8 text)" if counts.skipped else ""
        return f"{self.label}, {describe_counts(counts, noun)}{skipped}"


class _BadContent(Exception):
    """What is wrong with a file's content, as the rest of a sentence that begins with its name."""


class _NotText(_BadContent):
    """The file is none of text, and may be left out of a folder."""


def _decode(content: bytes) -> str:
    for mark, encoding in MARKS.items():
        if content.startswith(mark):
            try:
                return content.decode(encoding)
            except UnicodeDecodeError:
                raise _NotText(f"begins as {encoding.upper()} text and is none; convert or omit it") from None
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        for begin, (kind, advice) in BINARY.items():
            if content.startswith(begin):
                raise _NotText(f"is {kind}; {advice}") from None
        raise _NotText(f"is not UTF-8 text (byte {error.start}); convert or omit it") from None


def _texts_of_lines(text: str, field: str) -> list[str]:
    texts = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            record = read_json(line)
        except ValueError:
            raise _BadContent(f"is not JSON in line {number}; mend it, or rename it to train on plain text") from None
        if not isinstance(record, dict):
            raise _BadContent(f"holds no JSON object in line {number}; give one with its text in a field to each line")
        if not isinstance(record.get(field), str):
            there = f"; there are: {', '.join(record)}"
            if field in record:
                kind = type(record[field]).__name__
                raise _BadContent(
                    f"holds {kind}, not text, in the field {field!r} of line {number}; name another{there}"
                )
            raise _BadContent(
                f"has no field {field!r} in line {number}; name the one of the text with --data.dataset-column{there}"
            )
        # An escape can name half a character, which UTF-8 cannot write.
        texts.append(record[field].encode("utf-8", errors="replace").decode())
    return texts


def expand(patterns: tuple[str, ...]) -> list[TextFile]:
    """The files that paths and globs stand for, each once, named ones as named; those of a folder in sorted order.

    Hidden files are left out, and what commands of ours have written there: no run trains on another's metrics.
    """
    found: dict[Path, TextFile] = {}
    for pattern in patterns:
        path = Path(pattern).expanduser()
        matches = [path] if os.path.lexists(path) else [Path(p) for p in sorted(glob.glob(str(path), recursive=True))]
        if not matches:
            wrong = "nothing matches" if glob.has_magic(pattern) else "there is no file or folder"
            raise UsageError(f"{wrong} {pattern}; check the path")
        for match in matches:
            named = match is path
            root = match if named else _without_magic(path)
            inside = walk(match, lambda name: name.startswith(".") or name == "__pycache__") if match.is_dir() else None
            if inside is None and not match.is_file():
                if named:
                    raise UsageError(f"{pattern} is not a file or a folder; give a regular file")
                continue
            for file in [match] if inside is None else inside:
                if file != root and _is_output(file, root):
                    continue
                text = TextFile.at(file, named and inside is None)
                if text.named or file.resolve() not in found:
                    found[file.resolve()] = text
    if not found:
        raise UsageError(f"there are no files in {shorten(patterns)}; give files of text")
    return list(found.values())


def _without_magic(pattern: Path) -> Path:
    """The folder that a glob begins in."""
    parts = pattern.parts
    return Path(*parts[: next(number for number, part in enumerate(parts) if glob.has_magic(part))])


def _is_output(file: Path, root: Path) -> bool:
    """Whether the file is a run's or a record: a lock stays beside a record, and in each folder that holds runs.

    In folders below the root alone: who names a run's folder means it.
    """
    folders = list(file.relative_to(root).parents)[:-1]
    locks = [file.with_name(f".{file.name}{LOCK}"), *(root / folder / LOCK for folder in folders)]
    return any(lock.is_file() for lock in locks)


def walk(root: Path, skip: Callable[[str], bool]) -> list[Path]:
    """The regular files under root, sorted by their parts, without files and folders whose name `skip` takes."""

    def refuse(error: OSError) -> None:
        raise UsageError(f"cannot read the folder {error.filename}: {error.strerror}")

    found = []
    for folder, folders, names in os.walk(root, onerror=refuse):
        folders[:] = [name for name in folders if not skip(name)]
        found += [path for name in names if not skip(name) and (path := Path(folder, name)).is_file()]
    return sorted(found, key=lambda path: path.relative_to(root).parts)


class DatasetRows:
    """Rows of a dataset of the `datasets` library, one document each.

    A local file (csv, json, jsonl, parquet, text, arrow), a folder of such files, a folder made with `save_to_disk`, or
    a name on the hub. A local file of text is one document. What `datasets` itself stores goes into the cache folder.
    """

    total = 0
    families = ()

    def __init__(self, config: DataConfig, cache: Path) -> None:
        assert config.dataset
        self.name = config.dataset
        self.config = config
        self.cache = cache
        self.path = Path(config.dataset).expanduser()

    def identity(self) -> list[Any]:
        c = self.config
        local = []
        if self.path.exists():
            files = walk(self.path, lambda name: False) if self.path.is_dir() else [self.path]
            local = [[str(f.resolve()), f.stat().st_size, f.stat().st_mtime_ns] for f in files]
        return ["dataset", self.name, c.dataset_config, c.dataset_split, c.dataset_column, local]

    def read(self) -> Iterator[Document]:
        rows, column = self._load(), self.config.dataset_column
        if column not in rows.column_names:
            raise UsageError(
                f"dataset {self.name} has no column {column!r}; "
                f"set --data.dataset-column to one of: {', '.join(rows.column_names)}"
            )
        self.total = len(rows)
        batches = rows.select_columns([column]).iter(batch_size=1000)
        for number, text in enumerate(text for batch in batches for text in batch[column]):
            if not isinstance(text, str | None):
                kind = type(text).__name__
                raise UsageError(f"column {column!r} of dataset {self.name} holds {kind}, not text; choose another")
            yield Document(text or "", 1, f"row {number}")

    def describe(self, counts: Counts) -> str:
        return f"dataset {self.name}, split {self.config.dataset_split}, {describe_counts(counts, 'document')}"

    def _load(self) -> Any:
        try:
            import datasets
        except ImportError:
            raise UsageError(f"a dataset needs the datasets library: {install_command('hf')}") from None
        try:
            return self._load_split(datasets)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EDQUOT):
                raise
            raise self._refusal(error) from None
        except Exception as error:  # the library and what it builds on raise many kinds
            raise self._refusal(error) from None

    def _load_split(self, datasets: Any) -> Any:
        split, options = self.config.dataset_split, {}
        if (self.path / "dataset_dict.json").is_file() or (self.path / "state.json").is_file():
            rows = datasets.load_from_disk(str(self.path))
            if isinstance(rows, dict) and split not in rows:
                raise UsageError(f"dataset {self.name} has no split {split!r}; it has: {', '.join(rows)}")
            return rows[split] if isinstance(rows, dict) else rows
        cache = str(self.cache / "datasets")
        name: str | None = str(self.path) if self.path.exists() else self.name
        if self.path.is_file():
            name, options = DATASET_FORMATS.get(self.path.suffix), {"data_files": str(self.path)}
            if name is None:
                raise UsageError(f"{self.path} is no dataset file; known are: {', '.join(DATASET_FORMATS)}")
        kind = name
        if self.path.is_dir():
            kind = datasets.load_dataset_builder(name, self.config.dataset_config, cache_dir=cache).name
        if kind == "text":
            options["sample_by"] = "document"
        if self.path.suffix == ".tsv":
            options["sep"] = "\t"
        with nullcontext() if self.path.exists() else hub_or_cache():
            return datasets.load_dataset(name, self.config.dataset_config, split=split, cache_dir=cache, **options)

    def _refusal(self, error: Exception) -> UsageError:
        if isinstance(error, UsageError):
            return error
        cause = error.__cause__ or error  # "an error occurred while generating the dataset" hides what was wrong
        line = first_line(cause)
        return UsageError(f"cannot load the dataset {self.name}: {line}")


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
