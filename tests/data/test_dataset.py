"""Local datasets."""

from __future__ import annotations

import pytest

from attnres.data import DataConfig, open_corpus
from tests.data.text import TEXT, documents_of

datasets = pytest.importorskip("datasets", reason="needs the extra hf")

ROWS = [f"row {i}: {i**3} é\n{TEXT[: 40 + i]}" for i in range(60)]
WRITE = {
    "saved dictionary": lambda table, path: datasets.DatasetDict({"train": table}).save_to_disk(path),
    "folder": lambda table, path: table.to_json(path / "train.jsonl"),
    "a.parquet": lambda table, path: table.to_parquet(path),
}


@pytest.fixture(autouse=True)
def quiet():
    datasets.disable_progress_bars()
    yield
    datasets.enable_progress_bars()


@pytest.mark.parametrize("form", WRITE)
def test_every_local_form_gives_the_same_rows(form, tmp_path):
    (tmp_path / "folder").mkdir()
    WRITE[form](datasets.Dataset.from_dict({"text": ROWS, "number": list(range(len(ROWS)))}), tmp_path / form)
    corpus = open_corpus(DataConfig(dataset=str(tmp_path / form), cache=str(tmp_path / "cache")))
    assert sorted(documents_of(corpus.train) + documents_of(corpus.validation)) == sorted(ROWS)
    size = sum(len(row.encode()) for row in ROWS)
    assert corpus.description == f"dataset {tmp_path / form}, split train, 60 documents, {size:,} bytes"
