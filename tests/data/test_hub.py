"""Names of the hub where it cannot be reached: one line, and no half minute of tries."""

import os
import subprocess
import sys

import pytest

from attnres.data.hub import hub_or_cache

NOWHERE = """
import sys
from pathlib import Path
from attnres.data import DataConfig, load_tokenizer
from attnres.data.documents import DatasetRows
from attnres.errors import UsageError
from huggingface_hub import constants

for load in (
    lambda: load_tokenizer("no/such"),
    lambda: list(DatasetRows(DataConfig(dataset="no/such"), Path(sys.argv[1])).read()),
):
    try:
        load()
    except UsageError as error:
        print(error)
    assert not constants.HF_HUB_OFFLINE
"""


def test_its_libraries_look_into_their_caches_alone_where_it_cannot_be_reached(monkeypatch):
    constants = pytest.importorskip("huggingface_hub", reason="needs the extra hf").constants
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    with hub_or_cache() as why:
        assert "cannot be reached" in why and constants.HF_HUB_OFFLINE
    assert not constants.HF_HUB_OFFLINE


@pytest.mark.slow
def test_a_hub_that_cannot_be_reached_is_asked_once(tmp_path):
    home = {"HF_HOME": str(tmp_path), "HF_ENDPOINT": "http://127.0.0.1:9"}
    left = {name: value for name, value in os.environ.items() if "OFFLINE" not in name}
    done = subprocess.run(
        [sys.executable, "-c", NOWHERE, str(tmp_path / "cache")], env=left | home, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    tokenizer, dataset = done.stdout.splitlines()
    assert "'no/such'" in tokenizer and "cannot be reached" in tokenizer
    assert "no/such" in dataset and "Couldn't reach" in dataset
