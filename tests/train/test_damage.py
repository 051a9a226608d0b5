"""Runs whose files are lost, damaged or another run's, whose numbers leave the finite, whose disk is full."""

import shutil
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch

from attnres.train import Interrupted, RunStopped, load_run, read_metrics, train
from attnres.train.trainer import Trainer
from tests.disk import files_up_to
from tests.train.conftest import results, steps_on_disk, stop_at, weights


@pytest.fixture(scope="session")
def done(make_config, tmp_path_factory):
    """A run of 8 steps that is done, with checkpoints at 4 and 8."""
    folder = tmp_path_factory.mktemp("done") / "run"
    train(make_config(steps=8), folder)
    return folder


@pytest.fixture
def finished(done, make_config, tmp_path):
    """Its configuration, and a copy of its folder."""
    shutil.copytree(done, tmp_path / "run")
    return make_config(steps=8), tmp_path / "run"


def truncate(path):
    path.write_bytes(path.read_bytes()[:-7])


def flip_a_bit(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("harm", "file"),
    [
        (truncate, "model.safetensors"),
        (flip_a_bit, "optimizer.safetensors"),
        (Path.unlink, "state.json"),
        (flip_a_bit, "checksums.json"),
        (shutil.rmtree, ""),
    ],
)
def test_an_end_that_is_lost_or_damaged_is_trained_again_to_the_same_bits(finished, done, caplog, harm, file):
    """What train calls done, generate can load; a damaged checkpoint is named, and the one before is used."""
    config, folder = finished
    harm(folder / "checkpoints" / "step-00000008" / file)
    assert load_run(folder).step == 4
    if file:
        assert "step-00000008 is damaged" in caplog.messages[-1]
        assert file in caplog.messages[-1] or file == "checksums.json", "a false checksum blames the file"
    told = []
    with pytest.raises(Interrupted):
        train(config, folder, lambda event: (told.append(event), stop_at(6)(event)))
    assert told[0]["step"] == 4 and "its end is trained again" in told[0]["note"]
    assert not (folder / "summary.json").exists(), "it is not done"
    (folder / "tokenizer.json").unlink()
    train(config, folder)
    assert weights(folder, 8) == weights(done, 8) and load_run(folder).step == 8
    assert results(folder) == results(done)


def test_metrics_after_a_crash_have_no_line_twice_and_none_missing(done, make_config, tmp_path):
    config = make_config(steps=8)
    with pytest.raises(Interrupted):
        train(config, tmp_path, stop_at(4))
    with (tmp_path / "metrics.jsonl").open("ab") as file:
        file.write(b'{"kind": "train", "step": 5, "loss": 1.0}\n{"kind": "eval", "step": 8, "lo')
    train(config, tmp_path)
    assert results(tmp_path) == results(done)
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert len(lines) == len(read_metrics(done / "metrics.jsonl"))


def poison_at(step: int, parameter: str):
    """Patch for Trainer.train_step: the update of this step leaves a weight infinite."""
    original = Trainer.train_step

    def train_step(self):
        result = original(self)
        if self.step == step:
            with torch.no_grad():
                self.model.get_parameter(parameter).view(-1)[0] = torch.inf
        return result

    return train_step


def test_non_finite_loss_names_step_site_and_last_good_checkpoint(make_config, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "train_step", poison_at(6, "sublayers.3.up.weight"))
        with pytest.raises(RunStopped) as caught:
            train(make_config(), tmp_path)
    message = str(caught.value)
    assert "step 7: the loss is" in message
    assert "the output of site 3 (layer 1 MLP)" in message
    assert f"last good checkpoint: {tmp_path / 'checkpoints' / 'step-00000004'}" in message
    assert "lower learning rate" in message
    assert load_run(tmp_path).step == 4
    assert train(make_config(), tmp_path)["status"] == "done"


@pytest.mark.parametrize("evaluate_every", [2, 3])
def test_non_finite_weights_do_not_reach_the_disk(make_config, tmp_path, monkeypatch, evaluate_every):
    """Poisoned by the very update after which a checkpoint is due; found by evaluating or, at the latest, on saving."""
    monkeypatch.setattr(Trainer, "train_step", poison_at(4, "head.weight"))
    with pytest.raises(RunStopped, match=r"step 4: .*step-00000002"):
        train(make_config(save_every=2, evaluate_every=evaluate_every, keep=1), tmp_path)
    assert steps_on_disk(tmp_path) == [2]


@pytest.mark.parametrize(("limit", "file"), [(1000, "metrics.jsonl"), (20_000, "safetensors")])
def test_full_disk(done, make_config, tmp_path, limit, file):
    config, folder = make_config(steps=8), tmp_path / "run"
    told = rf"{file}: File too large, at step \d+; last good .*step-00000004"
    with ExitStack() as full, pytest.raises(RunStopped, match=told):

        def fill_disk(event):
            if event["kind"] == "saved":
                full.enter_context(files_up_to(limit))

        train(config, folder, fill_disk)
    assert steps_on_disk(folder) == [4], "the good one is intact, and what could not be finished is gone"
    train(config, folder)
    assert weights(folder, 8) == weights(done, 8)
    assert results(folder) == results(done)
