"""Corpora of the standard library, files, folders and globs; what goes wrong."""

from __future__ import annotations

import gzip
import json
import os
import sysconfig
from pathlib import Path

import numpy as np
import pytest
import tokenizers

from attnres.data import (
    DataConfig,
    check_length,
    validation_batches,
    validation_bytes_per_token,
)
from attnres.data.texts import open_documents
from attnres.errors import UsageError
from tests.data.text import documents_of, library_tokenizer, write_documents

# --- the standard library


def test_the_standard_library_is_its_files_and_no_tests(tmp_path):
    files = open_documents(DataConfig(dataset="stdlib"), tmp_path).files  # pyright: ignore
    root = Path(sysconfig.get_path("stdlib"))
    names = [file.path.relative_to(root).as_posix() for file in files]
    assert names == sorted(names, key=lambda name: name.split("/")) and len(names) > 300
    assert {"argparse.py", "json/decoder.py", "dataclasses.py"} <= set(names)
    assert not {"test", "tests", "site-packages", "dist-packages"} & {
        part for name in names for part in name.split("/")
    }


# --- files, folders, globs


def test_folder_is_read_in_sorted_order_and_parts_follow_it(open_, tmp_path):
    texts = write_documents(tmp_path / "documents")
    corpus = open_("documents", validation_fraction=0.2)
    held = documents_of(corpus.validation)
    assert documents_of(corpus.train) == [text for text in texts if text not in held]
    assert held == [text for text in texts if text in held] and len(held) > 1
    assert not corpus.train.flags.writeable and isinstance(corpus.validation, np.memmap)


def test_split_and_hash_do_not_depend_on_names(open_, tmp_path):
    write_documents(tmp_path / "documents")
    corpus = open_("documents")
    for file in sorted((tmp_path / "documents").iterdir()):
        file.rename(file.with_name("x" + file.name))
    os.rename(tmp_path / "documents", tmp_path / "other")
    assert open_("other").sha256 == corpus.sha256


def test_hash_changes_with_text_and_fraction(open_, tmp_path):
    write_documents(tmp_path / "documents")
    hashes = {open_("documents").sha256, open_("documents", validation_fraction=0.3).sha256}
    (tmp_path / "documents" / "000.txt").write_text("another text")
    hashes.add(open_("documents").sha256)
    assert len(hashes) == 3


def test_files_globs_and_folders_name_each_file_once(open_, tmp_path):
    texts = write_documents(tmp_path / "documents", 10)
    (tmp_path / "documents" / ".hidden").write_text("hidden")
    (tmp_path / "documents" / "deep").mkdir()
    (tmp_path / "documents" / "deep" / "a.md").write_text("deep")
    (tmp_path / "documents" / "empty").touch()
    corpus = open_("documents/003.txt", "documents/*.txt", "documents", "documents/**/*.md")
    documents = documents_of(corpus.train) + documents_of(corpus.validation)
    assert sorted(documents) == sorted([*texts, "deep"])
    assert ", 11 files, " in corpus.description and " and 1 more" in corpus.description


def test_what_commands_wrote_among_the_texts_is_no_text(open_, tmp_path):
    """Else the second run of an experiment in its text's folder trains on the metrics of the first."""
    texts = write_documents(tmp_path / "documents", 10)
    before = open_("documents").sha256
    for name in ("runs/.lock", "runs/block/.lock", "runs/block/metrics.jsonl", "runs/block/seed/config.json"):
        (tmp_path / "documents" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "documents" / name).write_text("{}\n")
    for name in (".record.json.lock", "record.json"):
        (tmp_path / "documents" / name).write_text("{}")
    for paths in (("documents",), ("documents/*",), ("documents/**/*",), ("documents/*.txt", "documents/*.json")):
        corpus = open_(*paths)
        assert sorted(documents_of(corpus.train) + documents_of(corpus.validation)) == sorted(texts), paths
    assert open_("documents").sha256 == before
    (tmp_path / "documents" / "runs" / "notes.txt").write_text("a text")
    assert documents_of(open_("documents/runs", "documents/000.txt").train)  # a folder that is named is meant


def test_one_document_is_split_at_its_end(open_, tmp_path):
    text = "".join(map(str, range(2000)))
    (tmp_path / "one.txt").write_text(text)
    corpus = open_("one.txt", validation_fraction=0.1)
    assert np.concatenate([corpus.train, corpus.validation]).tobytes() == text.encode() + b"\0"
    assert len(corpus.validation) == round(0.1 * (len(text) + 1))


def test_binary_files_in_a_folder_are_counted_and_left_out(open_, tmp_path):
    write_documents(tmp_path / "documents", 10)
    (tmp_path / "documents" / "image.bin").write_bytes(b"\x89\xff\x00")
    corpus = open_("documents")
    assert corpus.description.endswith("(1 left out: not UTF-8 text)") and ", 10 files, " in corpus.description
    assert open_("documents").description == corpus.description  # from the cache too


@pytest.mark.parametrize("tokens", [24, 10**6])
def test_bytes_per_token_of_what_is_evaluated(tokens, open_, tmp_path):
    """A few windows of Latin and Chinese text are of one of them, and their mean is not the whole part's."""
    (tmp_path / "documents").mkdir()
    for i in range(12):
        (tmp_path / "documents" / f"{i:02}.txt").write_text(f"{i} latin words " * 20)
        (tmp_path / "documents" / f"{i:02}.zh.txt").write_text(f"{i}残差连接的深度" * 20, encoding="utf-8")
    corpus = open_("documents", tokenizer="bpe:300", validation_fraction=0.3)
    asked = np.concatenate([batch[:, 1:].ravel() for batch in validation_batches(corpus, 24, 4, tokens)])
    bytes_ = sum(1 if token == corpus.tokenizer.end else len(corpus.tokenizer.piece(token)) for token in asked.tolist())
    found = validation_bytes_per_token(corpus, 24, tokens)
    assert found == pytest.approx(bytes_ / len(asked), rel=1e-12)
    assert (abs(found / corpus.bytes_per_token - 1) < 0.05) == (tokens == 10**6)


def test_bytes_are_those_of_the_text_where_the_tokenizer_does_not_give_it_back(open_, tmp_path):
    """Without its decoder the library puts a space between tokens: more bytes than the cut document has."""
    (tmp_path / "one.txt").write_text("déjà vu, " * 500, encoding="utf-8")
    library_tokenizer().save(str(tmp_path / "good.json"))
    expected = open_("one.txt", tokenizer=str(tmp_path / "good.json"))
    held_out = expected.tokenizer.decode(expected.validation).encode()
    assert expected.bytes_per_token == len(held_out) / len(expected.validation)
    library = json.loads((tmp_path / "good.json").read_text(encoding="utf-8"))
    (tmp_path / "poor.json").write_text(json.dumps(library | {"decoder": None}), encoding="utf-8")
    found = open_("one.txt", tokenizer=str(tmp_path / "poor.json"))
    assert np.array_equal(found.validation, expected.validation)
    given_back = len(found.tokenizer.decode(found.validation).encode()) / len(found.validation)
    assert given_back > 1.2 * expected.bytes_per_token
    assert found.bytes_per_token == pytest.approx(expected.bytes_per_token, rel=0.02)


def test_a_tokenizer_that_loses_text_is_named(open_, tmp_path, caplog):
    write_documents(tmp_path / "documents", 40)
    library = tokenizers.Tokenizer(tokenizers.models.WordLevel({"[UNK]": 0, "document": 1, ":": 2}, unk_token="[UNK]"))
    library.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    library.save(str(tmp_path / "tokenizer.json"))
    for _ in ("built", "from the cache"):
        caplog.clear()
        open_("documents", tokenizer=str(tmp_path / "tokenizer.json"))
        (line,) = caplog.messages
        assert "loses text of 40 of 40 documents" in line and "\n" not in line
    library_tokenizer().save(str(tmp_path / "good.json"))
    caplog.clear()
    open_("documents", tokenizer=str(tmp_path / "good.json"))
    open_("documents")
    assert not caplog.messages


def test_a_copy_of_the_document_that_is_cut_is_left_out(open_, tmp_path, caplog):
    """All of validation was in the training part."""
    text = "".join(map(str, range(2000)))
    (tmp_path / "book.txt").write_text(text)
    (tmp_path / "copy.txt").write_text(text)
    corpus = open_("book.txt", "copy.txt", validation_fraction=0.1)
    assert np.concatenate([corpus.train, corpus.validation]).tobytes() == text.encode() + b"\0"
    (line,) = caplog.messages
    assert "1 repeated" in line


def test_text_with_a_mark_of_its_encoding_is_read(open_, tmp_path):
    texts = ["schön €", "ピタゴラス", "plain"]
    for text, encoding in zip(texts, ("utf-16", "utf-32", "utf-16"), strict=True):
        (tmp_path / f"{text[0]}.txt").write_text(text * 9, encoding=encoding)
    corpus = open_("*.txt", validation_fraction=0.3)
    documents = documents_of(corpus.train) + documents_of(corpus.validation)
    assert sorted(documents) == sorted(text * 9 for text in texts)
    (tmp_path / "odd.txt").write_bytes(b"\xff\xfea")
    with pytest.raises(UsageError, match=r"odd\.txt begins as UTF-16"):
        open_("odd.txt")


def test_lines_of_json_are_documents(open_, tmp_path):
    texts = [f"row {i}: " + "x" * i for i in range(40)]
    path = tmp_path / "docs.jsonl"
    path.write_text("".join(json.dumps({"text": text, "id": 3}) + "\n" for text in texts))
    corpus = open_("docs.jsonl")
    assert sorted(documents_of(corpus.train) + documents_of(corpus.validation)) == sorted(texts)
    assert ", 40 documents, " in corpus.description
    path.write_text("".join(json.dumps({"body": text}) + "\n" for text in texts))
    assert open_("docs.jsonl", dataset_column="body").sha256 == corpus.sha256
    with pytest.raises(UsageError, match=r"no field 'text' in line 1; .* --data\.dataset-column.* body"):
        open_("docs.jsonl")
    path.write_text('{"text": "a"}\nplain\n')
    for paths in ("docs.jsonl", "*.jsonl"):  # a folder may hold what is no text, and no bad records
        with pytest.raises(UsageError, match=r"docs\.jsonl is not JSON in line 2"):
            open_(paths)


def test_half_a_character_in_json_is_a_question_mark_for_every_tokenizer(open_, tmp_path):
    texts = [f"row {i} " * 9 for i in range(30)]
    rows = [*map(json.dumps, ({"text": text} for text in texts)), '{"text": "a cut emoji \\ud83d here"}']
    (tmp_path / "docs.jsonl").write_text("\n".join(rows))
    library_tokenizer().save(str(tmp_path / "tokenizer.json"))
    for tokenizer in ("bytes", "bpe:270", str(tmp_path / "tokenizer.json")):
        corpus = open_("docs.jsonl", tokenizer=tokenizer)
        read = corpus.tokenizer.decode(corpus.train) + corpus.tokenizer.decode(corpus.validation)
        assert "a cut emoji ? here" in read


def test_documents_with_the_separator_in_them_are_counted(open_, tmp_path, caplog):
    tokenizer, end = "bpe:260", "<|endoftext|>"
    for i in range(40):
        (tmp_path / f"{i:02}.txt").write_text(f"{i} one{end * (i < 3)}two " * 20)
    open_("*.txt", tokenizer=tokenizer)
    (line,) = caplog.messages
    assert "in the text of 3 of 40 documents" in line and "\n" not in line


# --- what is no text


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("latin.txt", "é".encode("latin-1"), "not UTF-8 text"),
        ("empty.txt", b"", "the corpus is empty"),
        ("given.gz", gzip.compress(b"text", mtime=0), "gzip-compressed"),
        ("array.json", b'\xef\xbb\xbf[{"text": "one"}]', "is a JSON array"),
    ],
)
def test_a_file_that_is_given_and_is_no_text_is_refused(open_, tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    (tmp_path / "text.txt").write_text("some text " * 20)
    for paths in ((name,), (name, "*")) if content else ((name,),):  # wherever else it is found
        with pytest.raises(UsageError, match=message) as caught:
            open_(*paths)
        assert "\n" not in str(caught.value)


def test_a_path_that_is_not_there_is_named(open_):
    with pytest.raises(UsageError, match=r"no file or folder .*none\.txt"):
        open_("none.txt")
    with pytest.raises(UsageError, match=r"nothing matches .*\*\.csv"):
        open_("*.csv")


def test_too_short(open_, tmp_path):
    (tmp_path / "short.txt").write_text("x" * 199)
    corpus = open_("short.txt", validation_fraction=0.1)  # 180 and 20 tokens
    check_length(corpus, 19)
    with pytest.raises(UsageError, match="validation part has 20 tokens, a sequence needs 21"):
        check_length(corpus, 20)
    with pytest.raises(UsageError, match="training part has 180 tokens, a sequence needs 181"):
        check_length(corpus, 180)
