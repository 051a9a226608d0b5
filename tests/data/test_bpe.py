"""A tokenizer learned from the training part."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from attnres.data import DataConfig, open_corpus, tokenizer_from_json
from tests.data.text import documents_of


@pytest.fixture
def folder(tmp_path) -> Path:
    """Forty files, each with a word of its own."""
    (tmp_path / "texts").mkdir()
    for number in range(40):
        word = "".join(chr(97 + (number * 7 + place * 3) % 26) for place in range(8)) + f"é{chr(97 + number % 26)}"
        (tmp_path / "texts" / f"{number:02}.txt").write_text(f"{word} " * 30, encoding="utf-8")
    return tmp_path / "texts"


def open_(folder: Path, tokenizer: str, **options):
    return open_corpus(DataConfig(paths=(str(folder),), tokenizer=tokenizer, cache=str(folder.parent / "c"), **options))


def test_it_is_learned_from_the_training_part_alone(folder):
    corpus = open_(folder, "bpe:500", validation_fraction=0.1)
    assert 257 < corpus.vocab_size <= 500 and corpus.train.dtype == np.uint16 and corpus.separator == "<|endoftext|>"
    bytes_ = open_(folder, "bytes", validation_fraction=0.1)
    for part, same in ((corpus.train, bytes_.train), (corpus.validation, bytes_.validation)):
        texts = corpus.tokenizer.decode(part)  # special tokens are left out
        assert texts == "".join(documents_of(same))  # and the documents are those that bytes hold out
        assert part[-1] == corpus.tokenizer.end
    words = {text.split()[0] for text in documents_of(bytes_.validation)}
    length = {word: len(corpus.tokenizer.encode(f" {word}")) for word in words}
    assert min(length.values()) > 1  # of a word of the training part it is one
    assert len(corpus.tokenizer.encode(" " + documents_of(bytes_.train)[0].split()[0])) == 1
    assert corpus.bytes_per_token == len(bytes_.validation) / len(corpus.validation)


def test_it_is_learned_once_and_is_the_same_every_time(folder, tmp_path):
    first = open_(folder, "bpe:300")
    stages: list[str] = []
    config = DataConfig(paths=(str(folder),), tokenizer="bpe:300", cache=str(folder.parent / "c"))
    again = open_corpus(config, lambda stage, *_: stages.append(stage))
    assert again.sha256 == first.sha256 and not stages
    elsewhere = open_corpus(DataConfig(paths=(str(folder),), tokenizer="bpe:300", cache=str(tmp_path / "other")))
    assert elsewhere.tokenizer.to_json() == first.tokenizer.to_json()
    copy = tokenizer_from_json(json.loads(json.dumps(first.tokenizer.to_json())))
    assert copy.encode("é") == again.tokenizer.encode("é")
