"""A crash at every moment."""

import os
import sys

import pytest

from attnres.files import PARTIAL
from attnres.train import checkpoint as checkpoint_module
from attnres.train import train
from tests.train.conftest import results, weights


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
