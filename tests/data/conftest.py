from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import settings

from attnres.data import Corpus, DataConfig, open_corpus

settings.register_profile("no clock", deadline=None, max_examples=30)
settings.load_profile("no clock")


@pytest.fixture
def open_(tmp_path) -> Callable[..., Corpus]:
    """Open paths below tmp_path with a cache there."""

    def open_(*paths: str, **options) -> Corpus:
        config = DataConfig(paths=tuple(str(tmp_path / p) for p in paths), cache=str(tmp_path / "cache"), **options)
        return open_corpus(config)

    return open_
