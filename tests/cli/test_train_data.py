"""Datasets and tokenizers by name in `attnres train`, from local folders."""

from __future__ import annotations

import json
import math

import datasets
import pytest

from attnres.cli import main
from attnres.train import load_run
from tests.cli.conftest import TINY
from tests.data.text import TEXT, library_tokenizer

ROWS = [f"row {i}: {i**3} é\n{TEXT[: 200 + i]}" for i in range(40)]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory) -> str:
    """A folder with a tokenizer.json, as save_pretrained leaves it."""
    folder = tmp_path_factory.mktemp("tokenizer")
    library_tokenizer(special_tokens=["<|endoftext|>"]).save(str(folder / "tokenizer.json"))
    return str(folder)


@pytest.fixture
def offline(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    datasets.disable_progress_bars()
    yield
    datasets.enable_progress_bars()


def train(tmp_path, *options: str) -> int:
    return main(["train", str(tmp_path / "run"), *TINY, "--data.cache", str(tmp_path / "cache"), *options])


@pytest.mark.parametrize(
    "form", ["parquet", *(pytest.param(form, marks=pytest.mark.slow) for form in ("saved", "json"))]
)
def test_a_local_dataset_with_a_library_tokenizer(form, tokenizer, tmp_path, capsys, offline):
    rows, column = datasets.Dataset.from_dict({"body": ROWS}), "body"
    path = tmp_path / form
    if form == "saved":
        rows.save_to_disk(str(path))
    else:
        path = tmp_path / f"rows.{form}"
        {"parquet": rows.to_parquet, "json": rows.to_json}[form](str(path))
    options = ["--data.dataset", str(path), "--data.dataset-column", column, "--data.tokenizer", tokenizer]
    assert train(tmp_path, *options) == 0, capsys.readouterr().err
    output = capsys.readouterr().out
    assert f"corpus:     dataset {path}, split train, 40 document" in output
    record = json.loads((tmp_path / "run" / "config.json").read_text())["corpus"]
    per_token = json.loads((tmp_path / "run" / "summary.json").read_text())["validation_loss"]
    nats = per_token / record["bytes_per_token"]
    loss = f"validation loss {per_token:.4f} nats per token ({nats:.4f} nats, {nats / math.log(2):.4f} bits per byte)"
    assert record["bytes_per_token"] > 1.5 and output.count(loss) == 2  # of the last step, and when done
    run = load_run(tmp_path / "run")
    assert run.config.model.vocab_size == 280  # raised from bytes to the tokenizer's
    assert run.tokenizer.decode(run.tokenizer.encode("depth é")) == "depth é"
