"""Corpora of the standard library, files, folders, globs and JSON lines."""

from __future__ import annotations

import json
import sysconfig
from pathlib import Path

import numpy as np
import pytest
import tokenizers

from attnres.data import DataConfig, validation_batches, validation_bytes_per_token
from attnres.data.texts import open_documents
from attnres.errors import UsageError
from tests.data.text import documents_of, library_tokenizer, write_documents


def all_of(corpus) -> list[str]:
    return sorted(documents_of(corpus.train) + documents_of(corpus.validation))


def test_the_standard_library_is_its_files_and_no_tests(tmp_path):
    stamps = open_documents(DataConfig(dataset="stdlib"), tmp_path).identity[2:]
    root = Path(sysconfig.get_path("stdlib")).resolve()
    names = [Path(file).relative_to(root).as_posix() for file, *_ in stamps]
    assert names == sorted(names, key=lambda name: name.split("/")) and len(names) > 300
    assert {"argparse.py", "json/decoder.py", "dataclasses.py"} <= set(names)
    assert not {"test", "tests", "site-packages"} & {part for name in names for part in name.split("/")}


def test_folder_is_read_in_sorted_order_and_its_name_does_not_matter(open_, tmp_path):
    texts = write_documents(tmp_path / "documents")
    corpus = open_("documents", validation_fraction=0.2)
    held = documents_of(corpus.validation)
    assert documents_of(corpus.train) == [text for text in texts if text not in held]
    assert held == [text for text in texts if text in held] and len(held) > 1
    assert not corpus.train.flags.writeable and isinstance(corpus.validation, np.memmap)
    (tmp_path / "documents").rename(tmp_path / "other")
    assert open_("other", validation_fraction=0.2).sha256 == corpus.sha256
    assert open_("other").sha256 != corpus.sha256


def test_files_globs_and_folders_name_each_file_once(open_, tmp_path):
    texts = write_documents(tmp_path / "documents", 10)
    (tmp_path / "documents" / ".hidden").write_text("hidden")
    (tmp_path / "documents" / "deep").mkdir()
    (tmp_path / "documents" / "deep" / "a.md").write_text("deep")
    (tmp_path / "documents" / "empty").touch()
    (tmp_path / "documents" / "image.bin").write_bytes(b"\x89\xff\x00")
    corpus = open_("documents/003.txt", "documents/*.txt", "documents", "documents/**/*.md")
    assert all_of(corpus) == sorted([*texts, "deep"])
    assert ", 11 documents, " in corpus.description and corpus.description.endswith("which are not UTF-8 text: 1")


def test_what_commands_wrote_among_the_texts_is_no_text(open_, tmp_path):
    """Else the second run of an experiment in its text's folder trains on the metrics of the first."""
    texts = write_documents(tmp_path / "documents", 10)
    for name in ("runs/.lock", "runs/block/.lock", "runs/block/metrics.jsonl", "runs/block/seed/config.json"):
        (tmp_path / "documents" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "documents" / name).write_text("{}\n")
    for paths in (("documents",), ("documents/**/*",)):
        assert all_of(open_(*paths)) == sorted(texts), paths
    (tmp_path / "documents" / "runs" / "notes.txt").write_text("a text")
    assert documents_of(open_("documents/runs", "documents/000.txt").train)  # a folder that is named is meant


def test_bytes_per_token_of_what_is_evaluated(open_, tmp_path):
    """A few windows of Latin and Chinese text are of one of them, and their mean is not the whole part's."""
    (tmp_path / "documents").mkdir()
    for i in range(12):
        (tmp_path / "documents" / f"{i:02}.txt").write_text(f"{i} latin words " * 20)
        (tmp_path / "documents" / f"{i:02}.zh.txt").write_text(f"{i}残差连接的深度" * 20, encoding="utf-8")
    corpus = open_("documents", tokenizer="bpe:300", validation_fraction=0.3)
    asked = np.concatenate([batch[:, 1:].ravel() for batch in validation_batches(corpus, 24, 4, 24)])
    bytes_ = sum(1 if token == corpus.tokenizer.end else len(corpus.tokenizer.piece(token)) for token in asked.tolist())
    found = validation_bytes_per_token(corpus, 24, 24)
    assert found == pytest.approx(bytes_ / len(asked), rel=1e-12)
    assert abs(found / corpus.bytes_per_token - 1) > 0.05


def test_a_tokenizer_that_loses_text_is_named(open_, tmp_path, caplog):
    write_documents(tmp_path / "documents", 40)
    library = tokenizers.Tokenizer(tokenizers.models.WordLevel({"[UNK]": 0, "document": 1, ":": 2}, unk_token="[UNK]"))
    library.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    library.save(str(tmp_path / "tokenizer.json"))
    for _ in ("built", "from the cache"):
        caplog.clear()
        open_("documents", tokenizer=str(tmp_path / "tokenizer.json"))
        (line,) = caplog.messages
        assert "loses text of 40 of 40 documents" in line
    library_tokenizer().save(str(tmp_path / "good.json"))
    caplog.clear()
    open_("documents", tokenizer=str(tmp_path / "good.json"))
    assert not caplog.messages


def test_training_puts_no_special_tokens_around_a_text_and_nothing_later_does(open_, tmp_path):
    """A Llama's tokenizer.json puts <s> in front; the published form of a run kept that, which training never saw."""
    write_documents(tmp_path / "documents")
    library = library_tokenizer(["<s>", "</s>"])
    around = tokenizers.processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 0)])
    plain = tokenizers.processors.ByteLevel(trim_offsets=True)
    library.post_processor = tokenizers.processors.Sequence([plain, around])
    library.save(str(tmp_path / "tokenizer.json"))
    corpus = open_("documents", tokenizer=str(tmp_path / "tokenizer.json"))
    assert corpus.separator == "</s>" and 0 not in corpus.train
    kept = tokenizers.Tokenizer.from_str(json.dumps(corpus.tokenizer.to_json()["tokenizer"]))
    assert kept.encode("some text").ids == corpus.tokenizer.encode("some text", special=True)
    assert kept.encode("some text").ids == library.encode("some text", add_special_tokens=False).ids
    assert kept.encode("a b").offsets == library.encode("a b", add_special_tokens=False).offsets


@pytest.mark.parametrize("name", ["docs.jsonl", "c4.json"])
def test_lines_of_json_are_documents(open_, tmp_path, name):
    texts = [f"row {i}: " + "x" * i for i in range(40)]
    path = tmp_path / name
    path.write_text("\n" + "".join(json.dumps({"text": text, "id": 3}) + "\n" for text in texts))
    corpus = open_(name)
    assert all_of(corpus) == sorted(texts) and ", 40 documents, " in corpus.description
    path.write_text("".join(json.dumps({"body": text}) + "\n" for text in texts))
    assert open_(name, dataset_column="body").sha256 == corpus.sha256
    if name == "c4.json":  # which may be anything
        assert open_(name, validation_fraction=0.5)
        return
    with pytest.raises(UsageError, match=r"line 1 .* no field 'text'; .* --data\.dataset-column"):
        open_(name)
    path.write_text('{"text": "a"}\n{"text": "b"}\nplain\n')
    with pytest.raises(UsageError, match=r"line 3 of .* is not JSON"):
        open_("*")  # a folder may hold what is no text, and no bad records
