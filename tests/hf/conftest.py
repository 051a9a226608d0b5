from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest


@pytest.fixture(scope="session")
def kept(tmp_path_factory) -> SimpleNamespace:
    """An attached llama, the folder that it was saved to, and its logits on some tokens. Nobody changes them."""
    from tests.hf.models import make_tokens, save_attached

    folder = tmp_path_factory.mktemp("attached")
    model = save_attached(folder).eval()
    return SimpleNamespace(model=model, folder=folder, logits=model(make_tokens()).logits.detach())


@pytest.fixture
def saved(kept, tmp_path) -> Path:
    """A copy of that folder, to be damaged."""
    return Path(shutil.copytree(kept.folder, tmp_path / "attached"))
