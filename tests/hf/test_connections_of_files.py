"""A folder whose connection is in a Python file of one's own: the file is run where that is wanted, and else is not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from transformers import AutoConfig, AutoModelForCausalLM

import attnres.hf
from attnres import UsageError
from attnres.connections import connection_class
from tests.depth import randomise
from tests.hf.folders import edit_config
from tests.hf.models import assert_near, make_model, make_tokens

SOURCE = """
from pathlib import Path
from attnres.connections.rules.rms_residual import RMSResidual

Path(__file__).with_suffix(".ran").touch()

class Rule(RMSResidual):
    pass
"""


def write(file: Path) -> Path:
    """A file that leaves a mark when it is run."""
    file.write_text(SOURCE)
    return file


def ran(file: Path) -> bool:
    return file.with_suffix(".ran").exists()


@pytest.fixture
def own(saved):
    """A model and its folder, saved with a connection of a file beside the folder, which is run."""
    model = attnres.hf.attach(make_model("llama", num_hidden_layers=2), f"{write(saved.parent / 'mine.py')}:Rule")
    randomise(attnres.hf.connection_of(model))
    model.save_pretrained(saved)
    return model, saved


@pytest.fixture
def others(own, tmp_path):
    """The same folder as it comes from somebody else: it names a file that this process has not run."""
    (model, folder), file = own, tmp_path / "theirs.py"
    edit_config(folder, lambda config: config["attnres"].update(connection=f"{write(file)}:Rule:gate=true"))
    return model, folder, file


def assert_same(model, again) -> None:
    assert_near(again(make_tokens()).logits, model(make_tokens()).logits)


LOADERS = [AutoModelForCausalLM.from_pretrained, attnres.hf.load]


@pytest.mark.parametrize("load", LOADERS)
def test_a_file_is_not_run_unasked(load, others):
    model, folder, file = others
    named = re.escape(f"names a connection of the file {file}, which is not run unasked")
    with pytest.raises(UsageError, match=named):
        load(folder)
    assert not ran(file)
    connection_class(f"{file}:Rule")
    assert ran(file)
    assert_same(model, load(folder))


def test_a_file_that_has_changed_is_refused(others, tmp_path):
    _, folder, file = others
    file.write_text(SOURCE.replace("pass", "def readout(self, values):\n        return 2 * super().readout(values)"))
    for load in LOADERS:
        with pytest.raises(UsageError, match=f"{re.escape(str(file))} is not the file that these tensors were saved"):
            load(folder, trust_remote_code=True)
    edit_config(folder, lambda config: config["attnres"].pop("connection_file"))
    again = attnres.hf.load(folder, trust_remote_code=True)
    again.save_pretrained(tmp_path / "again")
    assert_same(again, attnres.hf.load(tmp_path / "again"))


def test_a_trusted_folder_is_loaded_by_the_auto_class(others, tmp_path):
    model, folder, file = others
    config = AutoConfig.from_pretrained(folder, trust_remote_code=True)
    with pytest.raises(UsageError, match="which is not run unasked"):
        AutoModelForCausalLM.from_config(config)
    with pytest.raises(UsageError, match="which is not run unasked"):
        AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=False)
    assert not ran(file)
    again = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
    assert ran(file)
    assert_same(model, again)
    again.save_pretrained(tmp_path / "again")
    assert_same(model, attnres.hf.load(tmp_path / "again"))
