"""Tokens on disk: written once, atomically, checked whenever they are opened, and memory-mapped."""

from __future__ import annotations

import errno
import hashlib
import json
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from attnres.data.documents import Counts, Document, Documents, shorten
from attnres.data.split import Piece, Split, Survey, split_documents
from attnres.data.tokenizer import Tokenizer, token_dtype
from attnres.errors import UsageError
from attnres.files import locked, named_errors, new_folder, read_json, write_json

FORMAT = 5  # part of the key: raise it when the same text would give other files
PARTS = ("train", "validation")
BATCH = 1 << 20  # characters that are tokenized at a time
CHUNK = 1 << 24  # bytes that are hashed at a time

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, eq=False)
class StoredTokens:
    train: np.memmap
    validation: np.memmap
    sha256: str
    counts: Counts
    validation_bytes: int
    """UTF-8 bytes of the text in the validation part, a separator counting as one."""
    warnings: tuple[str, ...]
    """One line each."""


def cached_tokens(
    documents: Documents, tokenizer: Tokenizer, fraction: float, root: Path, progress: Progress, checked: bool = False
) -> StoredTokens:
    """The tokens of the documents, from `root` or built there. One process builds; others that want the same wait.

    checked: another process has just compared the checksums, so sizes are enough.
    """
    key = _digest([FORMAT, documents.identity(), tokenizer.to_json(), fraction])[:32]
    folder = root / key
    stored = _open(folder, tokenizer, progress, checked)  # needs no lock and no right to write
    if stored:
        return stored
    root.mkdir(parents=True, exist_ok=True)
    with locked(root / f"{key}.lock", taken=lambda: progress("waiting", 0, 0)):
        stored = _open(folder, tokenizer, progress)  # another process may have built it meanwhile
        if stored:
            return stored
        with new_folder(folder) as partial:
            _build(documents, tokenizer, fraction, partial, progress)
        stored = _open(folder, tokenizer, progress)
    if stored is None:
        raise OSError(errno.EIO, "what was written cannot be read back; check the disk", str(folder))
    return stored


def _open(folder: Path, tokenizer: Tokenizer, progress: Progress, checked: bool = False) -> StoredTokens | None:
    """The stored tokens, or None where there are none or they are damaged (sizes and checksums are compared)."""
    dtype = token_dtype(tokenizer.vocab_size)
    try:
        record = read_json((folder / "corpus.json").read_text(encoding="utf-8"))
        checksums = {part: str(record["sha256"][part]) for part in PARTS}
        expected = {part: int(record["tokens"][part]) * dtype.itemsize for part in PARTS}
        counts = Counts(**record["counts"])
        size, warnings = int(record["validation_bytes"]), tuple(map(str, record["warnings"]))
        sizes = {part: (folder / f"{part}.bin").stat().st_size for part in PARTS}
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None
    if sizes != expected:
        return None
    done = 0
    for part in () if checked else PARTS:
        sha = hashlib.sha256()
        with open(folder / f"{part}.bin", "rb") as file:
            while chunk := file.read(CHUNK):
                sha.update(chunk)
                done += len(chunk)
                progress("checking", done, sum(sizes.values()))
        if sha.hexdigest() != checksums[part]:
            return None
    train, validation = (np.memmap(folder / f"{part}.bin", dtype=dtype, mode="r") for part in PARTS)
    sha = _digest([tokenizer.to_json(), dtype.str, checksums])
    return StoredTokens(train, validation, sha, counts, size, warnings)


def _build(documents: Documents, tokenizer: Tokenizer, fraction: float, folder: Path, progress: Progress) -> None:
    """Write both parts and their record into the folder."""
    spool = folder / "all.bin"  # the split is known only when all lengths are
    made = _tokenize(documents, tokenizer, spool, progress)
    if made.lengths.sum() < 2:
        left_out = f": {made.counts.skipped:,} files in it are not UTF-8" if made.left_out else ""
        raise UsageError(f"{documents.describe(made.counts)}: the corpus is empty{left_out}; give some text")
    tokens = np.memmap(spool, dtype=token_dtype(tokenizer.vocab_size), mode="r")
    split = split_documents(made.survey.hashes(documents.families), made.survey.sizes, made.lengths, fraction)
    record: dict[str, Any] = {
        "tokens": {},
        "sha256": {},
        "counts": asdict(made.counts),
        "validation_bytes": _held_out_bytes(split, made, tokens, tokenizer),
        "warnings": _warnings(split, made),
    }
    for part, held_out in zip(PARTS, (False, True), strict=True):
        chosen = [piece for piece in split.pieces if piece.held_out == held_out]
        record["tokens"][part] = sum(piece.stop - piece.start for piece in chosen)
        record["sha256"][part] = _write(folder / f"{part}.bin", _chunks(tokens, chosen))
    del tokens
    spool.unlink()
    write_json(folder / "corpus.json", record)


@dataclass(frozen=True, eq=False)
class _Tokenized:
    """What is known of each document once its tokens are written, and of all."""

    survey: Survey
    lengths: np.ndarray
    """int64, in tokens, the separator's among them."""
    counts: Counts
    left_out: tuple[str, ...]
    """Names of the files that are not text."""
    lost: int
    """Documents whose text does not come back from their tokens."""
    torn: int
    """Documents with the end of a document among their own tokens."""


def _tokenize(documents: Documents, tokenizer: Tokenizer, spool: Path, progress: Progress) -> _Tokenized:
    """Write the tokens of all documents."""
    survey, lengths = Survey(), array("q")
    separator = np.array(tokenizer.separator, dtype=token_dtype(tokenizer.vocab_size))
    done = lost = torn = 0
    left_out: list[str] = []
    with named_errors(spool), open(spool, "wb") as file:
        for batch in _batches(documents):
            texts = [document.text for document in batch if document.text]
            encoded = tokenizer.encode_documents(texts)
            lost += tokenizer.count_lost(texts, encoded)
            for text, ids in zip(texts, encoded, strict=True):
                torn += tokenizer.end is not None and bool((ids == tokenizer.end).any())
                survey.add(text)
                lengths.append(len(ids) + len(separator))
                file.write(ids.data)
                file.write(separator.data)
            left_out += [document.name for document in batch if document.text is None]
            done += sum(document.work for document in batch)
            progress("tokenizing", done, documents.total)
    counts = Counts(documents=len(lengths), bytes=int(survey.sizes.sum()) - len(lengths), skipped=len(left_out))
    return _Tokenized(survey, np.array(lengths, np.int64), counts, tuple(left_out), lost, torn)


def _batches(documents: Documents) -> Iterator[list[Document]]:
    """Gather about BATCH characters at a time."""
    batch: list[Document] = []
    characters = 0
    for document in documents.read():
        batch.append(document)
        characters += len(document.text or "")
        if characters >= BATCH:
            yield batch
            batch, characters = [], 0
    yield batch


def _held_out_bytes(split: Split, made: _Tokenized, tokens: np.ndarray, tokenizer: Tokenizer) -> int:
    """Count the bytes of the text in the validation part, a separator as one."""
    stops, bytes_before = np.cumsum(made.lengths), np.concatenate(([0], np.cumsum(made.survey.sizes)))
    total = 0
    for piece in split.pieces:
        if piece.held_out and split.cut is None:
            first, last = np.searchsorted(stops, (piece.start, piece.stop - 1), side="right")
            total += int(bytes_before[last + 1] - bytes_before[first])
        elif piece.held_out:  # the end of one document
            separator = len(tokenizer.separator)
            counted = tokenizer.count_bytes(tokens[piece.start : piece.stop - separator])
            if made.lost:  # what comes back is not the text, but about as large a part of it
                document = np.searchsorted(stops, piece.start, side="right")
                first, last = stops[document] - made.lengths[document], stops[document] - separator
                size = int(made.survey.sizes[document]) - 1
                counted = round(counted * size / max(1, tokenizer.count_bytes(tokens[first:last])))
            total += counted + 1
    return total


def _warnings(split: Split, made: _Tokenized) -> list[str]:
    found = []
    if made.left_out:
        found.append(f"left out, because they are not text: {shorten(made.left_out)}")
    if made.lost:
        found.append(
            f"the tokenizer loses text of {made.lost:,} of {made.counts.documents:,} documents (unknown characters, "
            "spaces or case), so losses per byte flatter it; choose one that gives every text back"
        )
    if made.torn:
        found.append(
            "what ends documents (a zero byte, or the tokenizer's end-of-text token) stands in the text of "
            f"{made.torn:,} of {made.counts.documents:,} documents, where a model takes it for their end"
        )
    if split.whole == 1:
        found.append(
            f"validation is one of {made.counts.documents:,} documents, so its losses say little of texts unlike it; "
            "more documents or a larger validation fraction hold out more"
        )
    if split.cut is not None:
        copies = f", and {split.repeated:,} repeated documents are left out" if split.repeated else ""
        found.append(
            "too few documents to hold whole ones out: validation is the end of the longest one, which training text "
            f"leads up to{copies}"
        )
    return found


def _chunks(tokens: np.ndarray, pieces: list[Piece]) -> Iterator[bytes]:
    step = CHUNK // tokens.itemsize
    for piece in pieces:
        for start in range(piece.start, piece.stop, step):
            yield tokens[start : min(start + step, piece.stop)].tobytes()


def _write(path: Path, chunks: Iterable[bytes]) -> str:
    """Write a file of the new folder. Returns the sha256."""
    sha = hashlib.sha256()
    with named_errors(path), open(path, "wb") as file:
        for chunk in chunks:
            file.write(chunk)
            sha.update(chunk)
    return sha.hexdigest()


def _digest(record: Any) -> str:
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()
