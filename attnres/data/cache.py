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

from attnres.data.documents import Counts, Documents
from attnres.data.split import Piece, split_documents
from attnres.data.tokenizer import Tokenizer, token_dtype
from attnres.errors import UsageError
from attnres.files import locked, named_errors, new_folder, write_json

FORMAT = 1  # part of the key: raise it when the same text would give other files
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


def cached_tokens(
    documents: Documents, tokenizer: Tokenizer, fraction: float, root: Path, progress: Progress
) -> StoredTokens:
    """The tokens of the documents, from `root` or built there. One process builds; others that want the same wait."""
    key = _digest([FORMAT, documents.identity(), tokenizer.to_json(), fraction])[:32]
    folder = root / key
    stored = _open(folder, tokenizer, progress)  # needs no lock and no right to write
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


def _open(folder: Path, tokenizer: Tokenizer, progress: Progress) -> StoredTokens | None:
    """The stored tokens, or None where there are none or they are damaged (sizes and checksums are compared)."""
    dtype = token_dtype(tokenizer.vocab_size)
    try:
        record = json.loads((folder / "corpus.json").read_text(encoding="utf-8"))
        checksums = {part: str(record["sha256"][part]) for part in PARTS}
        expected = {part: int(record["tokens"][part]) * dtype.itemsize for part in PARTS}
        counts = Counts(**record["counts"])
        sizes = {part: (folder / f"{part}.bin").stat().st_size for part in PARTS}
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None
    if sizes != expected:
        return None
    done = 0
    for part in PARTS:
        sha = hashlib.sha256()
        with open(folder / f"{part}.bin", "rb") as file:
            while chunk := file.read(CHUNK):
                sha.update(chunk)
                done += len(chunk)
                progress("checking", done, sum(sizes.values()))
        if sha.hexdigest() != checksums[part]:
            return None
    train, validation = (np.memmap(folder / f"{part}.bin", dtype=dtype, mode="r") for part in PARTS)
    return StoredTokens(train, validation, _digest([tokenizer.to_json(), dtype.str, checksums]), counts)


def _build(documents: Documents, tokenizer: Tokenizer, fraction: float, folder: Path, progress: Progress) -> None:
    """Write both parts and their record into the folder."""
    spool = folder / "all.bin"  # the split is known only when all lengths are
    hashes, lengths, counts = _tokenize(documents, tokenizer, spool, progress)
    if lengths.sum() < 2:
        left_out = f": {counts.skipped:,} files in it are not UTF-8" if counts.skipped else ""
        raise UsageError(f"{documents.describe(counts)}: the corpus is empty{left_out}; give some text")
    tokens = np.memmap(spool, dtype=token_dtype(tokenizer.vocab_size), mode="r")
    pieces = split_documents(hashes, lengths, fraction)
    record: dict[str, Any] = {"tokens": {}, "sha256": {}, "counts": asdict(counts)}
    for part, held_out in zip(PARTS, (False, True), strict=True):
        chosen = [piece for piece in pieces if piece.held_out == held_out]
        record["tokens"][part] = sum(piece.stop - piece.start for piece in chosen)
        record["sha256"][part] = _write(folder / f"{part}.bin", _chunks(tokens, chosen))
    del tokens
    spool.unlink()
    write_json(folder / "corpus.json", record)


def _tokenize(
    documents: Documents, tokenizer: Tokenizer, spool: Path, progress: Progress
) -> tuple[np.ndarray, np.ndarray, Counts]:
    """Write the tokens of all documents. Returns the hash (uint64) and length (int64) of each, and the counts."""
    hashes, lengths = array("Q"), array("q")
    separator = np.array(tokenizer.separator, dtype=token_dtype(tokenizer.vocab_size))
    done = size = skipped = 0
    with named_errors(spool), open(spool, "wb") as file:
        for texts, left_out, amount in _batches(documents):
            for text, ids in zip(texts, tokenizer.encode_documents(texts), strict=True):
                utf8 = text.encode("utf-8", errors="replace")
                hashes.append(int.from_bytes(hashlib.sha256(utf8).digest()[:8], "little"))
                lengths.append(len(ids) + len(separator))
                size += len(utf8)
                file.write(ids.data)
                file.write(separator.data)
            skipped += left_out
            done += amount
            progress("tokenizing", done, documents.total)
    counts = Counts(documents=len(lengths), bytes=size, skipped=skipped)
    return np.array(hashes, dtype=np.uint64), np.array(lengths, dtype=np.int64), counts


def _batches(documents: Documents) -> Iterator[tuple[list[str], int, int]]:
    """About BATCH characters at a time: (texts that are not empty, files skipped, amount of work)."""
    texts: list[str] = []
    characters = skipped = amount = 0
    for text, work in documents.read():
        amount += work
        skipped += text is None
        if text:
            texts.append(text)
            characters += len(text)
        if characters >= BATCH:
            yield texts, skipped, amount
            texts, characters, skipped, amount = [], 0, 0, 0
    yield texts, skipped, amount


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
