"""Tokens on disk: written once, atomically, and memory-mapped."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from attnres.data.documents import Documents
from attnres.data.split import Split, split_documents
from attnres.data.tokenizer import Tokenizer, token_dtype
from attnres.errors import UsageError
from attnres.files import locked, named_errors, new_folder, write_json

FORMAT = 6  # part of the key: raise it when the same text would give other files
PARTS = ("train", "validation")
BATCH = 1 << 20  # characters that are tokenized at a time

Progress = Callable[[str, int, int], None]


def cached_tokens(documents: Documents, tokenizer: Tokenizer, fraction: float, root: Path, progress: Progress) -> Path:
    """The folder of the documents' tokens, below `root`. One process builds it; others that want the same wait.

    It holds train.bin and validation.bin, ids of `token_dtype` one after the other, and corpus.json.
    """
    key = digest([FORMAT, documents.identity, tokenizer.to_json(), fraction])[:32]
    folder = root / key
    if not folder.is_dir():  # to open it needs no lock and no right to write
        root.mkdir(parents=True, exist_ok=True)
        with locked(root / f"{key}.lock", taken=lambda: progress("waiting", 0, 0)):
            if not folder.is_dir():  # another process may have built it meanwhile
                with new_folder(folder) as partial:
                    _build(documents, tokenizer, fraction, partial, progress)
    return folder


def _build(documents: Documents, tokenizer: Tokenizer, fraction: float, folder: Path, progress: Progress) -> None:
    """Write both parts and their record into the folder."""
    progress("reading", 0, 0)
    split = split_documents(documents, fraction)
    separator = np.array(tokenizer.separator, dtype=token_dtype(tokenizer.vocab_size))
    tokens, sizes = dict.fromkeys(PARTS, 0), dict.fromkeys(PARTS, 0)
    hashes, lost = {part: hashlib.sha256() for part in PARTS}, 0
    with named_errors(folder), ExitStack() as stack:
        files = {part: stack.enter_context(open(folder / f"{part}.bin", "wb")) for part in PARTS}
        for batch in _batches(split.texts(documents)):
            texts = [text for text, _ in batch]
            encoded = tokenizer.encode_documents(texts)
            lost += tokenizer.count_lost(texts, encoded)
            for (text, held), ids in zip(batch, encoded, strict=True):
                part = PARTS[held]
                for some in (ids, separator):
                    files[part].write(some.data)
                    hashes[part].update(some.data)
                    tokens[part] += len(some)
                sizes[part] += len(text.encode("utf-8", errors="replace")) + 1
            progress("tokenizing", sum(sizes.values()), split.counts.bytes + split.counts.documents)
    if not all(tokens.values()):
        raise UsageError(f"{documents.describe(split.counts)}: the corpus is empty; give some text")
    record = {
        "tokens": tokens,
        "sha256": {part: sha.hexdigest() for part, sha in hashes.items()},
        "counts": asdict(split.counts),
        "validation_bytes": sizes["validation"],
        "warnings": _warnings(split, lost),
    }
    write_json(folder / "corpus.json", record)


def _batches(texts: Iterable[tuple[str, bool]]) -> Iterator[list[tuple[str, bool]]]:
    """Gather about BATCH characters at a time."""
    batch: list[tuple[str, bool]] = []
    characters = 0
    for text, held in texts:
        batch.append((text, held))
        characters += len(text)
        if characters >= BATCH:
            yield batch
            batch, characters = [], 0
    yield batch


def _warnings(split: Split, lost: int) -> list[str]:
    found = []
    if lost:
        found.append(
            f"the tokenizer loses text of {lost:,} of {split.counts.documents:,} documents (unknown characters, spaces "
            "or case), so losses per byte flatter it; choose one that gives every text back"
        )
    if split.cut is not None:
        found.append(
            "too few documents to hold whole ones out: validation is the end of the longest one, which training text "
            "leads up to; of equal documents one is kept"
        )
    return found


def digest(record: Any) -> str:
    """The SHA-256 of a JSON value."""
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()
