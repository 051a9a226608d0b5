"""Names of the hub where it cannot be reached: one line, and no half minute of tries."""

import os
import subprocess
import sys

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


def test_a_hub_that_cannot_be_reached_is_asked_once(tmp_path):
    home = {"HF_HOME": str(tmp_path), "HF_ENDPOINT": "http://127.0.0.1:9"}
    left = {name: value for name, value in os.environ.items() if "OFFLINE" not in name}
    done = subprocess.run(
        [sys.executable, "-c", NOWHERE, str(tmp_path / "cache")], env=left | home, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    tokenizer, dataset = done.stdout.splitlines()
    assert tokenizer.startswith(
        "cannot load the tokenizer 'no/such': no such file, and from the hub: it cannot be reached"
    )
    assert dataset.startswith("cannot load the dataset no/such: Couldn't reach 'no/such' on the Hub")
