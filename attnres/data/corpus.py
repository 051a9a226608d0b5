"""A corpus: tokens of text on disk, in two parts, with their tokenizer and identity."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from attnres.data.bpe import learned_tokenizer, vocabulary_size
from attnres.data.cache import PARTS, cached_tokens, digest
from attnres.data.dataconfig import DataConfig
from attnres.data.documents import Counts
from attnres.data.texts import open_documents
from attnres.data.tokenizer import Tokenizer, load_tokenizer, separator_name, token_dtype, tokenizer_from_json
from attnres.errors import UsageError
from attnres.files import cache_folder

log = logging.getLogger("attnres")


@dataclass(frozen=True, eq=False)
class Corpus:
    """Documents in sorted order, each followed by the tokenizer's separator."""

    train: np.memmap
    """Token ids of the training part: 1-D, read-only, uint8, uint16 or uint32."""
    validation: np.memmap
    """Token ids of the held-out part."""
    tokenizer: Tokenizer
    sha256: str
    """Identity of text, tokenizer and split: equal exactly if tokens, parts and tokenizer are."""
    description: str
    """One line for humans: "Python sources of torch 2.13.0, 2,196 documents, 46,444,776 bytes"."""
    bytes_per_token: float
    """UTF-8 bytes of text per token of the validation part, a separator counting as one byte.

    A loss on some windows of that part is of `validation_bytes_per_token`.
    """

    @property
    def vocab_size(self) -> int:
        return self.tokenizer.vocab_size

    @property
    def separator(self) -> str:
        """What follows every document, in words."""
        return separator_name(self.tokenizer)


def open_corpus(config: DataConfig, progress: Callable[[str, int, int], None] | None = None) -> Corpus:
    """Open the corpus of a configuration: from the cache when it is there and up to date, else built there.

    Whole documents are held out for validation, chosen by a hash of their text and the same for every tokenizer
    (`split_documents`). Tokens lie in `config.cache` (default: `attnres.files.cache_folder`), in a folder named by the
    paths, sizes and times of the files (of a package by its version), the tokenizer and the validation fraction.
    Several processes may open the same corpus at once: one builds it, the others wait. A dataset on the hub is read
    once and then taken from the cache. Warnings name a tokenizer that loses text or learned fewer ids than it was to,
    and a document that had to be cut.

    Args:
        config: text, tokenizer, validation fraction and cache.
        progress: called with (work, done, total) of "reading", "tokenizing", "waiting" and "learning byte pairs of";
            total is 0 where unknown.

    Raises:
        UsageError: there is no usable text.
        OSError: a full or read-only disk, with the file's name.
    """
    report = progress or (lambda work, done, total: None)
    root = Path(config.cache).expanduser() if config.cache else cache_folder()
    root.mkdir(parents=True, exist_ok=True)
    documents, size = open_documents(config, root), vocabulary_size(config.tokenizer)
    if size:
        tokenizer = learned_tokenizer(documents, size, config.validation_fraction, root / "tokenizers", report)
        if tokenizer.vocab_size < size:
            log.warning("%s: the text has no more to learn than %s ids", config.tokenizer, f"{tokenizer.vocab_size:,}")
    else:
        tokenizer = tokenizer_from_json(load_tokenizer(config.tokenizer).to_json())
    folder = cached_tokens(documents, tokenizer, config.validation_fraction, root / "corpora", report)
    record = json.loads((folder / "corpus.json").read_text(encoding="utf-8"))
    for warning in record["warnings"]:
        log.warning("%s", warning)
    dtype = token_dtype(tokenizer.vocab_size)
    train, validation = (np.memmap(folder / f"{part}.bin", dtype=dtype, mode="r") for part in PARTS)
    return Corpus(
        train=train,
        validation=validation,
        tokenizer=tokenizer,
        sha256=digest([tokenizer.to_json(), dtype.str, record["sha256"]]),
        description=documents.describe(Counts(**record["counts"])),
        bytes_per_token=record["validation_bytes"] / len(validation),
    )


def in_bits(nats: float) -> float:
    """A loss in nats as one in bits. Per byte, tokenizers can be compared by either."""
    return nats / math.log(2)


def check_length(corpus: Corpus, sequence: int) -> None:
    """Raise UsageError unless both parts hold at least one sequence and the token after it."""
    for name, tokens in (("training", corpus.train), ("validation", corpus.validation)):
        if len(tokens) <= sequence:
            raise UsageError(
                f"the corpus is too short: its {name} part has {len(tokens)} tokens, a sequence needs {sequence + 1}; "
                "give more text, a shorter context or another validation_fraction"
            )
