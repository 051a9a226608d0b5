"""Local datasets with a tokenizer of the tokenizers library."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from attnres.data import DataConfig, open_corpus
from tests.data.text import TEXT, library_tokenizer

datasets = pytest.importorskip("datasets", reason="needs the extra hf")

ROWS = [f"row {i}: {i**3} é\n{TEXT[: 40 + i]}" for i in range(60)]


@pytest.fixture(scope="module", autouse=True)
def quiet():
    datasets.disable_progress_bars()
    yield
    datasets.enable_progress_bars()


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    library_tokenizer(special_tokens=["<|endoftext|>"]).save(str(path))
    return str(path)


@pytest.fixture
def make(tmp_path):
    """Write ROWS in one form; returns the path."""
    table = datasets.Dataset.from_dict({"text": ROWS, "number": list(range(len(ROWS)))})

    def make(form: str) -> Path:
        path = tmp_path / form
        if form == "saved":
            table.save_to_disk(str(path))
        elif form == "saved dictionary":
            datasets.DatasetDict({"train": table}).save_to_disk(str(path))
        elif form == "folder":
            path.mkdir()
            table.to_json(str(path / "train.jsonl"))
        else:
            {".csv": table.to_csv, ".jsonl": table.to_json, ".parquet": table.to_parquet}[path.suffix](str(path))
        return path

    return make


def open_(path: Path, tmp_path: Path, **options):
    return open_corpus(DataConfig(dataset=str(path), cache=str(tmp_path / "cache"), **options))


@pytest.mark.parametrize("form", ["saved dictionary", "folder", "a.parquet"])
def test_every_local_form_gives_the_same_tokens(form, make, tokenizer, tmp_path):
    corpus = open_(make(form), tmp_path, tokenizer=tokenizer)
    end = corpus.tokenizer.encode("<|endoftext|>")
    assert len(end) == 1 and corpus.vocab_size == 280 and corpus.train.dtype == np.uint16
    parts = []
    for part in (corpus.train, corpus.validation):
        stops = np.flatnonzero(part == end[0])
        assert stops[-1] == len(part) - 1
        parts.append([text for ids in np.split(part, stops) if (text := corpus.tokenizer.decode(ids))])
    assert sorted(parts[0] + parts[1]) == sorted(ROWS)
    size = sum(len(row.encode()) for row in ROWS)
    assert corpus.description == f"dataset {tmp_path / form}, split train, 60 documents, {size:,} bytes"
    held_out = sum(len(text.encode()) + 1 for text in parts[1])
    assert corpus.bytes_per_token == held_out / len(corpus.validation)
