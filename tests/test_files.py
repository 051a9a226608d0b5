"""What a crash or an error in the middle of writing leaves, and what it is called."""

import errno
import json
import os
import stat
import threading
from pathlib import Path

import pytest
import safetensors.torch
import torch

from attnres.errors import UsageError
from attnres.files import (
    PARTIAL,
    added_folder,
    cache_folder,
    locked,
    named_errors,
    new_folder,
    partial_folder,
    remove_partial,
    replacement,
    write_json,
    write_text,
)
from attnres.ops import cpu


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_replaced_as_a_whole(tmp_path):
    path = tmp_path / "x.json"
    write_text(path, "old ä")
    assert path.read_bytes() == "old ä".encode()
    with pytest.raises(ZeroDivisionError), replacement(path) as partial:
        partial.write_text("half")
        assert path.read_text() == "old ä"
        raise ZeroDivisionError
    assert path.read_text() == "old ä" and names(tmp_path) == ["x.json"]
    write_json(path, {"a": [1]})
    assert json.loads(path.read_text()) == {"a": [1]} and names(tmp_path) == ["x.json"]
    with pytest.raises(ValueError):
        write_json(path, float("nan"))
    assert json.loads(path.read_text()) == {"a": [1]}


def test_what_is_in_a_new_folder_may_be_read_by_all_who_may_read_the_folder(tmp_path):
    def write(folder, name):
        (folder / name).mkdir()
        safetensors.torch.save_file({"w": torch.zeros(2)}, folder / name / "model.safetensors")
        (folder / name / "run.sh").touch(0o700)

    def modes(folder):
        return {path.name: stat.filemode(path.stat().st_mode) for path in (folder / "a").iterdir()}

    old = os.umask(0o027)
    try:
        with added_folder(tmp_path / "model") as partial:
            write(partial, "a")
        assert modes(tmp_path / "model") == {"model.safetensors": "-rw-r-----", "run.sh": "-rwxr-----"}
        os.umask(0o077)
        with added_folder(tmp_path / "private") as partial:
            write(partial, "a")
        assert modes(tmp_path / "private") == {"model.safetensors": "-rw-------", "run.sh": "-rwx------"}
    finally:
        os.umask(old)


def test_an_error_without_a_name_gets_one(tmp_path):
    with pytest.raises(OSError) as caught, named_errors(tmp_path / "x"):
        raise OSError(28, "No space left on device")
    assert caught.value.filename == str(tmp_path / "x")
    with pytest.raises(OSError) as caught, named_errors(tmp_path / "x"):
        (tmp_path / "other").read_text()
    assert caught.value.filename == str(tmp_path / "other")


def test_a_folder_appears_whole_or_not_at_all(tmp_path, monkeypatch):
    partial_folder(tmp_path / "step").mkdir()  # of a process that was killed
    (partial_folder(tmp_path / "step") / "rubbish").touch()
    with new_folder(tmp_path / "step") as partial:
        (partial / "a").write_text("old")
        assert names(tmp_path) == [f".step{PARTIAL}"]
    with pytest.raises(KeyboardInterrupt), new_folder(tmp_path / "step") as partial:
        (partial / "a").write_text("new")
        raise KeyboardInterrupt
    assert names(tmp_path) == ["step"] and (tmp_path / "step" / "a").read_text() == "old"
    rename = os.rename

    def fail(source, target):
        if source == partial_folder(tmp_path / "step"):
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(source), None, str(target))
        rename(source, target)

    monkeypatch.setattr("attnres.files.os.rename", fail)
    with pytest.raises(OSError) as caught, new_folder(tmp_path / "step") as partial:
        (partial / "a").write_text("new")
    assert str(caught.value) == f"[Errno 5] Input/output error: '{tmp_path / 'step'}'"
    assert names(tmp_path) == ["step"] and (tmp_path / "step" / "a").read_text() == "old"


def test_an_added_folder_takes_no_others_place(tmp_path):
    path = tmp_path / "new"
    with added_folder(path) as partial:
        (partial / "a").write_text("first")
    for taken in (path, tmp_path / "link"):
        (tmp_path / "link").unlink(missing_ok=True)
        (tmp_path / "link").symlink_to(tmp_path / "nowhere")
        with pytest.raises(UsageError, match="exists; give a new folder"), added_folder(taken):
            raise AssertionError
    with pytest.raises(OSError, match="not empty"), added_folder(tmp_path / "late") as partial:
        (partial / "a").write_text("second")
        (tmp_path / "late").mkdir()
        (tmp_path / "late" / "b").touch()
    assert names(tmp_path) == ["late", "link", "new"] and names(tmp_path / "late") == ["b"] and names(path) == ["a"]


def test_rubbish_of_a_crash_is_removed_and_nothing_of_the_users(tmp_path):
    (tmp_path / f".x.json.1a2b3c4d{PARTIAL}").touch()
    for name in (f".step-4{PARTIAL}", "photos.partial", PARTIAL):
        (tmp_path / name).mkdir()
    (tmp_path / "film.mkv.partial").touch()
    remove_partial(tmp_path)
    assert names(tmp_path) == [PARTIAL, "film.mkv.partial", "photos.partial"]


def test_a_lock_is_refused_or_waited_for(tmp_path):
    def refuse():
        raise UsageError("taken")

    order, inside = [], threading.Event()

    def wait():
        with locked(tmp_path / ".lock", taken=inside.set):
            order.append("second")

    waiting = threading.Thread(target=wait)
    with locked(tmp_path / ".lock", taken=refuse):
        with pytest.raises(UsageError, match="taken"), locked(tmp_path / ".lock", taken=refuse):
            raise AssertionError
        waiting.start()
        assert inside.wait(120)
        order.append("first")
    waiting.join(120)
    assert order == ["first", "second"]


def test_without_a_home_folder_there_is_no_cache_folder_and_no_kernel(monkeypatch, caplog):
    """As in a container under a user id that it does not know."""

    def home():
        raise RuntimeError("Could not determine home directory.")

    for name in ("XDG_CACHE_HOME", "ATTNRES_MARCH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", home)
    with pytest.raises(FileNotFoundError, match="there is no home folder to cache in; set XDG_CACHE_HOME"):
        cache_folder()
    assert cpu.load.__wrapped__() is False
    assert "no CPU kernel, so depth attention runs in plain PyTorch" in caplog.text
