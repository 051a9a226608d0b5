"""Texts of known bytes: the Python sources of an installed package at one version."""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import os
from pathlib import Path

import numpy as np
import pytest

from attnres.data import DataConfig, open_corpus
from attnres.data.texts import KNOWN, KnownText, package_text
from attnres.errors import UsageError
from tests.data.text import documents_of

TORCH_SHA256 = "719e8f111e03b69573b354b5902e07074b8ad4f5f3a0678a507cf89499abb146"
"""Of the bytes, the tokenizer and the split: what every machine must find."""
TOY_SHA256 = "7430a5ed7a208206b8b9eb7bd45bc83e48cc233a5a376bfcc939cdc24e3590dd"

FILES = {
    "b.py": "b = 2\n",
    "a/z.py": "z = 1\n",
    "a/__init__.py": "",
    "a.py": "a = 1\n",
    "version.py": "version = '1'\n",
}


@pytest.fixture
def toy(tmp_path, monkeypatch) -> KnownText:
    """A package `toy_text` 1.0, installed, and known under that name."""
    install(tmp_path / "site", "1.0+local", FILES)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    importlib.invalidate_caches()
    content = b"".join(FILES[name].encode() + b"\0" for name in ("a/z.py", "a.py", "b.py"))  # by parts: a/ before a.py
    known = KnownText("toy_text", "1.0", len(content) - 3, hashlib.sha256(content).hexdigest(), ["version.py"], [])
    monkeypatch.setitem(KNOWN, "toy_text", known)
    return known


def install(site: Path, version: str, files: dict[str, str]) -> None:
    for name, text in {"__init__.py": "", **files, "data.txt": "no source"}.items():
        file = site / "toy_text" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text.encode())
    metadata = site / "toy_text.dist-info" / "METADATA"
    metadata.parent.mkdir(exist_ok=True)
    metadata.write_text(f"Metadata-Version: 2.1\nName: toy-text\nVersion: {version}\n")


@pytest.mark.slow
def test_the_default_corpus_is_torchs_sources_byte_for_byte(tmp_path):
    """Every published loss is of these tokens and this split."""
    if importlib.metadata.version("torch").partition("+")[0] != KNOWN["torch"].version:
        pytest.skip("another version of torch is installed")
    corpus = open_corpus(DataConfig(cache=str(tmp_path)))
    assert corpus.sha256 == TORCH_SHA256
    assert corpus.description == "Python sources of torch 2.13.0, 2,196 documents, 46,444,776 bytes"
    assert len(corpus.validation) / (len(corpus.train) + len(corpus.validation)) == pytest.approx(0.05, abs=0.001)
    train, held = documents_of(corpus.train), documents_of(corpus.validation)
    assert sum(len(text.encode()) for text in train + held) == KNOWN["torch"].bytes
    optimizers = [side for side in (train, held) for text in side if "class RMSprop(Optimizer)" in text]
    assert len({id(side) for side in optimizers}) == 1


@pytest.mark.parametrize(
    ("version", "files", "message"),
    [
        ("1.1", FILES, r"installed is 1\.1, .*: pip install toy_text==1\.0"),
        ("1.0", {**FILES, "b.py": "b = 3\n"}, "have changed"),
    ],
    ids=["another version", "a changed file"],
)
def test_another_text_is_one_line_that_says_what_to_do(version, files, message, toy, tmp_path):
    install(tmp_path / "site", version, files)
    with pytest.raises(UsageError, match=message) as caught:
        open_corpus(DataConfig(dataset="toy_text", cache=str(tmp_path / "cache")))
    assert "\n" not in str(caught.value)
    assert not list((tmp_path / "cache" / "corpora").glob("*/"))


def test_files_come_in_the_order_of_their_parts_whatever_ends_their_lines_and_are_cached(toy, tmp_path):
    """Without empty ones and those left out; wheels for Windows have other line ends."""
    install(tmp_path / "site", "1.0", {name: text.replace("\n", "\r\n") for name, text in FILES.items()})
    assert list(package_text(toy).read()) == ["z = 1\n", "a = 1\n", "b = 2\n"]
    config = DataConfig(dataset="toy_text", cache=str(tmp_path / "cache"), validation_fraction=0.4)
    first = open_corpus(config)
    assert first.sha256 == TOY_SHA256
    for file in (tmp_path / "site" / "toy_text").rglob("*.py"):
        os.unlink(file)
    again = open_corpus(config)
    assert again.sha256 == first.sha256
    np.testing.assert_array_equal(again.train, first.train)
