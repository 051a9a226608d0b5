"""The cache of tokens: when it is built again, who builds it."""

from __future__ import annotations

import os

from attnres.data import DataConfig, open_corpus
from tests.data.text import write_documents


def test_cache_is_reused_until_a_file_changes(open_, tmp_path):
    write_documents(tmp_path / "documents")
    first = open_("documents")
    inode = os.stat(first.train.filename).st_ino  # pyright: ignore
    assert os.stat(open_("documents").train.filename).st_ino == inode  # pyright: ignore
    os.utime(tmp_path / "documents" / "000.txt", (1, 1))
    again = open_("documents")
    assert os.stat(again.train.filename).st_ino != inode and again.sha256 == first.sha256  # pyright: ignore


def test_a_cache_inside_the_text_is_not_text_and_progress_reaches_its_total(tmp_path):
    """Otherwise a second opening would read what the first one wrote, and find another corpus."""
    size = sum(len(text.encode()) + 1 for text in write_documents(tmp_path))
    config, heard = DataConfig(paths=(str(tmp_path),), cache=str(tmp_path / "cache")), []
    first, second = open_corpus(config, lambda *call: heard.append(call)), open_corpus(config)
    assert first.sha256 == second.sha256 and first.description == second.description
    assert ("tokenizing", size, size) in heard
