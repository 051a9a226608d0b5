"""Checkpoints under every kind of damage and a crash at every moment."""

import os
import shutil
import sys

import pytest

from attnres.files import PARTIAL
from attnres.train import checkpoint as checkpoint_module
from attnres.train import load_run, train
from tests.train.conftest import results, steps_on_disk, weights


class Crash(BaseException):
    """The process dies here."""


class Disk:
    """An audit hook that counts what the program does to files in a folder, and dies at a chosen one.

    Python tells the hook of every open, rename, remove and mkdir before it happens. From the crash on, nothing works
    any more: a dead process cleans nothing up.
    """

    def __init__(self):
        self.folder, self.left, self.count = None, None, 0
        sys.addaudithook(self)  # for the rest of this process: hooks cannot be removed

    def __call__(self, event, arguments):
        if self.folder is None or not event.startswith(("open", "os.", "shutil.")):
            return
        if any(isinstance(a, str | bytes) or hasattr(a, "__fspath__") for a in arguments[:1]):
            path = arguments[0].decode() if isinstance(arguments[0], bytes) else str(arguments[0])
            if path.startswith(self.folder):
                self.touch()

    def touch(self):
        self.count += 1
        if self.left is not None and self.count > self.left:
            raise Crash


@pytest.fixture(scope="module")
def disk():
    return Disk()


def test_crash_at_many_writes(disk, make_config, tmp_path, monkeypatch):
    """Whatever the moment of the crash, the same call afterwards ends with the same bits."""
    model = {"layers": 1, "dim": 8, "heads": 1, "connection": "residual"}
    config = make_config(model=model, steps=2, evaluate_every=1, save_every=1, keep=1)
    monkeypatch.setattr("attnres.train.environment._commit", lambda: None)  # it takes longest
    save_file = checkpoint_module.save_file

    def save_or_die_half_way(tensors, path):
        save_file(tensors, path)  # not Python code: the hook does not hear of it
        try:
            disk.touch()
        except Crash:
            os.truncate(os.open(path, os.O_RDWR), path.stat().st_size // 2)
            raise

    monkeypatch.setattr(checkpoint_module, "save_file", save_or_die_half_way)

    def run(folder, left):
        disk.folder, disk.left, disk.count = str(folder), left, 0
        try:
            train(config, folder)
        except Crash:
            return False
        finally:
            disk.folder = None
        return True

    assert run(tmp_path / "straight", None)
    moments = disk.count
    assert moments > 50
    expected, expected_results = weights(tmp_path / "straight", 2), results(tmp_path / "straight")
    for moment in range(0, moments, 7):
        folder = tmp_path / str(moment)
        assert not run(folder, moment)
        assert run(folder, None)
        assert weights(folder, 2) == expected, moment
        assert results(folder) == expected_results, moment
        names = [path.name for path in folder.rglob("*")]
        assert not [name for name in names if name.endswith((PARTIAL, ".damaged"))], (moment, names)


def truncate(path):
    path.write_bytes(path.read_bytes()[:-7])


def flip_a_bit(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


def remove(path):
    path.unlink()


FILES = ["model.safetensors", "optimizer.safetensors", "state.json", "checksums.json"]


@pytest.fixture(scope="module")
def died(make_config, tmp_path_factory):
    """A run of 12 steps that died after step 10, with checkpoints at 4 and 8, and one that did not."""
    config, folder = make_config(steps=12), tmp_path_factory.mktemp("runs")

    def die(event):
        if event["kind"] == "train" and event["step"] == 10:
            raise Crash

    with pytest.raises(Crash):
        train(config, folder / "died", die)
    assert steps_on_disk(folder / "died") == [4, 8]
    train(config, folder / "straight")
    return config, folder


@pytest.fixture
def stopped(died, tmp_path):
    config, folder = died
    shutil.copytree(folder / "died", tmp_path / "run")
    return config, tmp_path / "run"


@pytest.mark.parametrize(
    ("harm", "file"),
    [(truncate, FILES[0]), (flip_a_bit, FILES[1]), (remove, FILES[2]), (flip_a_bit, FILES[3])],
)
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(died, stopped, caplog, file, harm):
    config, folder = stopped
    harm(folder / "checkpoints" / "step-00000008" / file)
    assert load_run(folder).step == 4
    warning = caplog.records[-1].getMessage()
    assert "step-00000008 is damaged" in warning
    assert file in warning or file == "checksums.json", "a false checksum blames the file"
    if harm is truncate:
        events = []
        train(config, folder, events.append)
        assert events[0]["step"] == 4
        assert weights(folder, 12) == weights(died[1] / "straight", 12)
        assert results(folder) == results(died[1] / "straight")
