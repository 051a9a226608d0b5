from __future__ import annotations

import math
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from attnres.look.subject import open_subjects
from tests.look.runs import Client, serving, train_small

CONNECTIONS = ("residual", "block:block_size=2", "highway", "delta:reads=qkv")


@pytest.fixture(autouse=True)
def no_run_goes_quiet(monkeypatch):
    """However long a test takes, a run that is not done counts as one that trains."""
    monkeypatch.setattr("attnres.look.subject.QUIET_SECONDS", math.inf)


@pytest.fixture(scope="session")
def runs(tmp_path_factory) -> list[Path]:
    """Runs of several connections, in the order of CONNECTIONS."""
    folder = tmp_path_factory.mktemp("runs")
    return [train_small(folder, connection, keep=9) for connection in CONNECTIONS]


@pytest.fixture
def run(runs, tmp_path) -> Path:
    """A run of six steps of `block` that a test may change."""
    return Path(shutil.copytree(runs[1], tmp_path / "block"))


@pytest.fixture(scope="session")
def other(tmp_path_factory) -> Path:
    """The same with another seed."""
    return train_small(tmp_path_factory.mktemp("other"), CONNECTIONS[1], keep=9, seed=1)


@pytest.fixture(scope="session")
def client(runs) -> Iterator[Client]:
    """A page's side of a microscope on all of them."""
    with serving(open_subjects(runs)) as page:
        yield page


@pytest.fixture(scope="session")
def saved_models(tmp_path_factory) -> list[Path]:
    """A plain transformers model and an attached one on disk, with a byte-level tokenizer."""
    tokenizers = pytest.importorskip("tokenizers", reason="needs the extra hf")
    import attnres.hf
    from tests.hf.models import make_model

    letters = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    library = tokenizers.Tokenizer(tokenizers.models.BPE({c: i for i, c in enumerate(sorted(letters))}, []))
    library.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = tokenizers.decoders.ByteLevel()
    folder, plain = tmp_path_factory.mktemp("models"), make_model("llama", vocab_size=256)
    plain.save_pretrained(folder / "plain")
    attached = attnres.hf.attach(plain, "block:block_size=2")
    with torch.no_grad():
        for query in attnres.hf.connection_of(attached).query:
            query.normal_(generator=torch.Generator().manual_seed(0))
    attached.save_pretrained(folder / "attached")
    for name in ("plain", "attached"):
        library.save(str(folder / name / "tokenizer.json"))
    return [folder / "plain", folder / "attached"]


@pytest.fixture
def opened(browser, client):
    """The page with TEXT in it; afterwards the console must be empty, and only the server asked."""
    from tests.look.pages import TEXT, Page, address

    browser.set_window_size(1400, 1000)
    for log in ("browser", "performance"):
        browser.get_log(log)
    page = Page(browser, address(client))
    page.type(TEXT)
    yield page
    assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []
    assert all(url.startswith(("http://127.0.0.1:", "data:", "blob:", "about:")) for url in page.asked())
