"""Corpora of the standard library, files, folders and globs; what goes wrong."""

from __future__ import annotations

import gzip
import json
import os
import sys
import sysconfig
from pathlib import Path

import numpy as np
import pytest
import tokenizers

from attnres.data import (
    Corpus,
    DataConfig,
    check_length,
    open_corpus,
    validation_batches,
    validation_bytes_per_token,
)
from attnres.errors import UsageError
from tests.data.text import documents_of, library_tokenizer, write_documents

# --- the standard library


@pytest.fixture(scope="module")
def library(tmp_path_factory) -> Corpus:
    return open_corpus(DataConfig(dataset="stdlib", cache=str(tmp_path_factory.mktemp("cache"))))


def test_standard_library_holds_its_files_and_no_tests(library):
    documents = documents_of(library.train) + documents_of(library.validation)
    for module in ("argparse", "json.decoder", "dataclasses"):
        __import__(module)
        assert Path(sys.modules[module].__file__ or "").read_text() in documents
    count, size = len(documents), sum(len(text.encode()) for text in documents)
    version = ".".join(map(str, sys.version_info[:3]))
    assert library.description == f"Python {version} standard library, {count} files, {size / 1e6:.1f} MB"
    assert size > 5e6
    for pattern in ("test/test_*.py", "*/test/test_*.py", "*/tests/test_*.py", "site-packages/*/__init__.py"):
        files = list(Path(sysconfig.get_path("stdlib")).glob(pattern))  # few interpreters have none
        assert not {file.read_bytes() for file in files if file.stat().st_size} & {text.encode() for text in documents}
    assert library.vocab_size == 256 and library.train.dtype == np.uint8 and library.bytes_per_token == 1


def test_standard_library_parts_are_disjoint_and_of_the_asked_size(library):
    train, held = documents_of(library.train), documents_of(library.validation)
    assert not set(train) & set(held)
    assert len(library.validation) / (len(library.train) + len(library.validation)) == pytest.approx(0.05, abs=0.005)


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


def test_bytes_per_token_are_those_of_the_validation_part(open_, tmp_path):
    """Latin letters and Chinese characters: their mean says nothing of a part that has only the one."""
    (tmp_path / "documents").mkdir()
    for i in range(12):
        (tmp_path / "documents" / f"{i:02}.txt").write_text(f"{i} latin words " * 20)
        (tmp_path / "documents" / f"{i:02}.zh.txt").write_text(f"{i}残差连接的深度" * 20, encoding="utf-8")
    library_tokenizer().save(str(tmp_path / "tokenizer.json"))
    corpus = open_("documents", tokenizer=str(tmp_path / "tokenizer.json"), validation_fraction=0.03)
    texts = [text for text in corpus.tokenizer.decode(corpus.validation).split("\n") if text]
    assert corpus.bytes_per_token == sum(len(text.encode()) + 1 for text in texts) / len(corpus.validation)


@pytest.mark.parametrize("tokens", [24, 96, 10**6])
@pytest.mark.parametrize("kind", ["bytes", "bpe:300"])
def test_bytes_per_token_of_what_is_evaluated(kind, tokens, open_, tmp_path):
    """A few windows of Latin and Chinese text are of one of them, and their mean is not the whole part's."""
    (tmp_path / "documents").mkdir()
    for i in range(12):
        (tmp_path / "documents" / f"{i:02}.txt").write_text(f"{i} latin words " * 20)
        (tmp_path / "documents" / f"{i:02}.zh.txt").write_text(f"{i}残差连接的深度" * 20, encoding="utf-8")
    corpus = open_("documents", tokenizer=kind, validation_fraction=0.3)
    asked = np.concatenate([batch[:, 1:].ravel() for batch in validation_batches(corpus, 24, 4, tokens)])
    bytes_ = sum(1 if token == corpus.tokenizer.end else len(corpus.tokenizer.piece(token)) for token in asked.tolist())
    found = validation_bytes_per_token(corpus, 24, tokens)
    assert found == pytest.approx(bytes_ / len(asked), rel=1e-12)
    if kind != "bytes":
        assert (abs(found / corpus.bytes_per_token - 1) < 0.05) == (tokens == 10**6)


@pytest.mark.parametrize("kind", ["bytes", "library"])
def test_bytes_per_token_where_a_document_is_cut(kind, open_, tmp_path):
    (tmp_path / "one.txt").write_text("déjà vu, " * 500, encoding="utf-8")
    library_tokenizer().save(str(tmp_path / "tokenizer.json"))
    name = {"bytes": "bytes", "library": str(tmp_path / "tokenizer.json")}[kind]
    corpus = open_("one.txt", tokenizer=name)
    size = len(corpus.tokenizer.decode(corpus.validation).encode())
    assert corpus.bytes_per_token == (1 if kind == "bytes" else size / len(corpus.validation))


def test_bytes_are_those_of_the_text_where_the_tokenizer_does_not_give_it_back(open_, tmp_path):
    """Without its decoder the library puts a space between tokens: more bytes than the cut document has."""
    (tmp_path / "one.txt").write_text("déjà vu, " * 500, encoding="utf-8")
    library_tokenizer().save(str(tmp_path / "good.json"))
    expected = open_("one.txt", tokenizer=str(tmp_path / "good.json"))
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
        assert line.startswith("the tokenizer loses text of 40 of 40 documents") and "\n" not in line
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
    assert "validation is the end of the longest one" in line and "1 repeated" in line


def test_text_with_a_mark_of_its_encoding_is_read(open_, tmp_path):
    texts = ["schön €", "ピタゴラス", "plain"]
    for text, encoding in zip(texts, ("utf-16", "utf-32", "utf-16"), strict=True):
        (tmp_path / f"{text[0]}.txt").write_text(text * 9, encoding=encoding)
    corpus = open_("*.txt", validation_fraction=0.3)
    documents = documents_of(corpus.train) + documents_of(corpus.validation)
    assert sorted(documents) == sorted(text * 9 for text in texts)
    (tmp_path / "odd.txt").write_bytes(b"\xff\xfea")
    with pytest.raises(UsageError, match=r"odd\.txt begins as UTF-16 text and is none; convert or omit it"):
        open_("odd.txt")


def test_validation_of_one_document_is_said(open_, tmp_path, caplog):
    write_documents(tmp_path / "documents", 10)
    for _ in ("built", "from the cache"):
        caplog.clear()
        open_("documents")
        (line,) = caplog.messages
        assert line.startswith("validation is one of 10 documents")
    caplog.clear()
    open_("documents", validation_fraction=0.2)
    assert not caplog.messages


def test_files_that_are_left_out_are_named(open_, tmp_path, caplog):
    write_documents(tmp_path / "documents", 40)
    for name in "abcd":
        (tmp_path / "documents" / name).write_bytes("é".encode("latin-1"))
    open_("documents")
    (line,) = caplog.messages
    assert line.startswith("left out, because they are not text: ") and line.endswith("documents/c and 1 more")


def test_lines_of_json_are_documents(open_, tmp_path):
    texts = [f"row {i}: " + "x" * i for i in range(40)]
    path = tmp_path / "docs.jsonl"
    path.write_text("".join(json.dumps({"text": text, "id": 3}) + "\n" for text in texts))
    corpus = open_("docs.jsonl")
    assert sorted(documents_of(corpus.train) + documents_of(corpus.validation)) == sorted(texts)
    assert ", 40 documents, " in corpus.description
    path.write_text("".join(json.dumps({"body": text}) + "\n" for text in texts))
    assert open_("docs.jsonl", dataset_column="body").sha256 == corpus.sha256
    with pytest.raises(UsageError, match=r"has no field 'text' in line 1; .* --data\.dataset-column; .*: body"):
        open_("docs.jsonl")
    path.write_text('{"text": "a"}\nplain\n')
    with pytest.raises(UsageError, match=r"docs\.jsonl is not JSON in line 2"):
        open_("docs.jsonl")


def test_half_a_character_in_json_is_a_question_mark_for_every_tokenizer(open_, tmp_path):
    texts = [f"row {i} " * 9 for i in range(30)]
    rows = [*map(json.dumps, ({"text": text} for text in texts)), '{"text": "a cut emoji \\ud83d here"}']
    (tmp_path / "docs.jsonl").write_text("\n".join(rows))
    library_tokenizer().save(str(tmp_path / "tokenizer.json"))
    for tokenizer in ("bytes", "bpe:270", str(tmp_path / "tokenizer.json")):
        corpus = open_("docs.jsonl", tokenizer=tokenizer)
        read = corpus.tokenizer.decode(corpus.train) + corpus.tokenizer.decode(corpus.validation)
        assert "a cut emoji ? here" in read


def test_a_byte_order_mark_is_no_part_of_json(open_, tmp_path):
    for mark in ("", "\ufeff"):
        (tmp_path / "docs.jsonl").write_text(f'{mark}{{"text": "one"}}\n{{"text": "two"}}\n', encoding="utf-8")
        corpus = open_("docs.jsonl", validation_fraction=0.5)
        assert sorted(documents_of(corpus.train) + documents_of(corpus.validation)) == ["one", "two"]
        (tmp_path / "docs.json").write_text(f'{mark}[{{"text": "one"}}]', encoding="utf-8")
        with pytest.raises(UsageError, match=r"docs\.json is a JSON array"):
            open_("docs.json")


@pytest.mark.parametrize(("tokenizer", "end"), [("bytes", "\0"), ("bpe:260", "<|endoftext|>")])
def test_documents_with_the_separator_in_them_are_counted(open_, tmp_path, caplog, tokenizer, end):
    for i in range(40):
        (tmp_path / f"{i:02}.txt").write_text(f"{i} one{end * (i < 3)}two " * 20)
    open_("*.txt", tokenizer=tokenizer)
    (line,) = caplog.messages
    assert "in the text of 3 of 40 documents" in line and "\n" not in line


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"text": "a"}\nplain\n', "is not JSON in line 2; mend it"),
        ('{"text": "a"}\n' + "[" * 100_000, "is not JSON in line 2; mend it"),
        ('{"body": "a"}\n', r"has no field 'text' in line 1; .* --data\.dataset-column"),
    ],
)
def test_bad_lines_of_json_in_a_folder_are_refused_as_in_a_file_given_directly(open_, tmp_path, content, message):
    write_documents(tmp_path / "documents", 10)
    (tmp_path / "documents" / "binary.jsonl").write_bytes(b"\xff")
    assert open_("documents").description.endswith("(1 left out: not UTF-8 text)")
    (tmp_path / "documents" / "docs.jsonl").write_text(content)
    for path in ("documents", "documents/docs.jsonl", "documents/*.jsonl"):
        with pytest.raises(UsageError, match=rf"docs\.jsonl {message}"):
            open_(path)


# --- errors


def test_text_errors_are_one_line(open_, tmp_path):
    (tmp_path / "latin.txt").write_bytes("é".encode("latin-1"))
    (tmp_path / "empty.txt").touch()
    (tmp_path / "folder").mkdir()
    (tmp_path / "binary").mkdir()
    (tmp_path / "binary" / "a").write_bytes(b"\xff")
    os.mkfifo(tmp_path / "pipe")
    for path, message in {
        "none.txt": "there is no file or folder .*none.txt; check the path",
        "*.csv": r"nothing matches .*\*.csv; check the path",
        "latin.txt": r"latin.txt is not UTF-8 text \(byte 0\); convert or omit it",
        "pipe": "pipe is not a file or a folder",
        "folder": "there are no files in .*folder; give files of text",
        "empty.txt": "the corpus is empty; give some text",
        "binary": "the corpus is empty: 1 files in it are not UTF-8; give some text",
    }.items():
        with pytest.raises(UsageError, match=message) as caught:
            open_(path)
        assert "\n" not in str(caught.value)
    for paths in (("latin.txt", "*.txt"), ("*.txt", "latin.txt")):  # named by the user, wherever else it is found
        with pytest.raises(UsageError, match=r"latin\.txt is not UTF-8"):
            open_(*paths)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (gzip.compress(b"text", mtime=0), "is gzip-compressed; unpack it first"),
        (b"PAR1\x15\x04\xff", "is a Parquet file; give it as --data.dataset"),
        (b"PK\x03\x04\xff", "is a ZIP archive or an office document; unpack or convert it first"),
        (b"%PDF-1.7\n\xe2\xe3", "is a PDF; convert it to text first"),
    ],
)
def test_a_well_known_format_is_told_by_name(open_, tmp_path, content, message):
    (tmp_path / "given").write_bytes(content)
    with pytest.raises(UsageError, match=f"given {message}$"):
        open_("given")


def test_a_file_that_cannot_be_read_is_named(open_, tmp_path, monkeypatch):
    write_documents(tmp_path / "documents", 3)

    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_bytes", refuse)  # root, who may run the tests, can read any file
    with pytest.raises(UsageError, match=r"cannot read .*000.txt: Permission denied"):
        open_("documents")


def test_too_short(open_, tmp_path):
    (tmp_path / "short.txt").write_text("x" * 199)
    corpus = open_("short.txt", validation_fraction=0.1)  # 180 and 20 tokens
    check_length(corpus, 19)
    with pytest.raises(UsageError, match="too short: its validation part has 20 tokens, a sequence needs 21; give"):
        check_length(corpus, 20)
    with pytest.raises(UsageError, match="too short: its training part has 180 tokens, a sequence needs 181; give"):
        check_length(corpus, 180)


def test_paths_or_a_dataset():
    with pytest.raises(UsageError, match="give either paths or a dataset, and not both"):
        DataConfig(paths=("a",), dataset="b")
    with pytest.raises(UsageError, match="neither paths nor a dataset is given; give one of them"):
        DataConfig(dataset=None)
    assert DataConfig().dataset == "torch" and DataConfig(paths=("a",)).dataset is None
