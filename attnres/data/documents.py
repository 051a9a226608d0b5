"""Documents: files as text, and rows of datasets."""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
    """Files that are not UTF-8."""


@dataclass(frozen=True)
class Documents:
    """The texts of a corpus, one after the other."""

    label: str
    """What they are, for humans."""
    identity: list[Any]
    """JSON that changes whenever the texts may have; made without reading them."""
    read: Callable[[], Iterator[str | None]]
    """Yields the texts in a fixed order, without half characters (surrogates); None for a file that is left out."""
    families: Sequence[Sequence[int]] = ()
    """The numbers of documents that go to the same part although their texts are not equal."""

    def describe(self, counts: Counts) -> str:
        """One line: "Python sources of torch 2.13.0, 2,196 documents, 46,444,776 bytes"."""
        skipped = f"; files left out, which are not UTF-8 text: {counts.skipped:,}" if counts.skipped else ""
        return f"{self.label}, {counts.documents:,} documents, {counts.bytes:,} bytes{skipped}"


def text_files(label: str, files: Sequence[Path], field: str) -> Documents:
    """Files of UTF-8 text, one document each; of JSON lines, one for each line. Other files are left out.

    field: what holds the text of a line of JSON.
    """

    def read() -> Iterator[str | None]:
        for path in files:
            try:
                text = path.read_bytes().decode("utf-8")
            except UnicodeDecodeError:
                yield None
            else:
                yield from _texts(path, text, field)

    return Documents(label, ["files", field, *map(_stamp, files)], read)


def _texts(path: Path, text: str, field: str) -> list[str]:
    # Not `splitlines`: JSON may hold other ends of lines.
    lines = [(number, line) for number, line in enumerate(text.removeprefix("\ufeff").split("\n"), 1) if line.strip()]
    if path.suffix not in RECORD_SUFFIXES and not (lines and _is_record(lines[0][1], field)):
        return [text]
    return [_text_of(line, field, f"line {number} of {path}") for number, line in lines]


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


def expand(patterns: tuple[str, ...]) -> list[Path]:
    """The files that paths and globs stand for, each once; a folder's are sorted.

    Hidden files are left out, and what commands of ours have written there: no run trains on another's metrics.
    """
    found: dict[Path, Path] = {}
    for pattern in patterns:
        path = Path(pattern).expanduser()
        exists = os.path.lexists(path)
        matches = [path] if exists else [Path(match) for match in sorted(glob.glob(str(path), recursive=True))]
        if not matches:
            raise UsageError(f"there is no file or folder {pattern}; check the path")
        for match in matches:
            root = match if exists else _without_magic(path)
            for file in walk(match, lambda name: name.startswith(".") or name == "__pycache__"):
                if file == root or not _is_output(file, root):
                    found.setdefault(file.resolve(), file)
    if not found:
        raise UsageError(f"there are no files in {shorten(patterns)}; give files of text")
    return list(found.values())


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


def dataset_rows(config: DataConfig, cache: Path) -> Documents:
    """Rows of a dataset of the `datasets` library, one document each: what `load_dataset` or `load_from_disk` reads.

    That is a local file (csv, json, jsonl, parquet, arrow), a folder of such files, a folder that `save_to_disk` made,
    or a name on the hub. What `datasets` itself stores goes into the cache folder.
    """
    name, variant, split, column = config.dataset, config.dataset_config, config.dataset_split, config.dataset_column
    assert name
    path = Path(name).expanduser()

    def load(datasets: Any) -> Any:
        if (path / "dataset_dict.json").is_file() or (path / "state.json").is_file():
            rows = datasets.load_from_disk(str(path))
            return rows[split] if isinstance(rows, dict) else rows
        place, files = str(path) if path.exists() else name, None
        if path.is_file():  # as one of its folder's: `datasets` then knows its kind
            place, files = str(path.parent), path.name
        return datasets.load_dataset(place, variant, split=split, data_files=files, cache_dir=str(cache / "datasets"))

    def read() -> Iterator[str | None]:
        try:
            import datasets
        except ImportError:
            raise UsageError(f"a dataset needs the datasets library: {install_command('hf')}") from None
        for batch in load(datasets).select_columns([column]).iter(batch_size=1000):
            yield from (text or "" for text in batch[column])

    local = [_stamp(file) for file in walk(path, lambda name: False)]
    return Documents(f"dataset {name}, split {split}", ["dataset", name, variant, split, column, local], read)


def _stamp(path: Path) -> list[Any]:
    """What tells whether a file is still the same."""
    stat = path.stat()
    return [str(path.resolve()), stat.st_size, stat.st_mtime_ns]


def shorten(names: Sequence[str]) -> str:
    """Join the first three names."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more
