"""Real processes that are killed, stopped and started again."""

import json
import os
import signal
from functools import partial
from pathlib import Path

import pytest

from attnres.train import config_to_json, train, worker
from tests.train.conftest import results, steps_on_disk, weights
from tests.train.processes import Processes, wait_for


def write_config(folder: Path, config) -> str:
    path = folder / "given.json"
    path.write_text(json.dumps(config_to_json(config)), encoding="utf-8")
    return str(path)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def killed_at(step, config, folder) -> None:
    """Die by kill -9 between two checkpoints."""
    train(config, folder, lambda event: die() if event["kind"] == "train" and event["step"] == step else None)


@pytest.mark.slow
def test_killed_again_and_again_it_goes_on_to_the_same_bits(make_config, tmp_path):
    config = make_config(steps=12, save_every=2, keep=1)
    train(config, tmp_path / "straight")
    folder = tmp_path / "killed"
    for step in (1, 5):  # the first before there is any checkpoint; test_checkpoint.py dies at every write
        with Processes(tmp_path / "said", partial(killed_at, step, config, folder)) as run:
            assert run.end() == [-signal.SIGKILL], run.said
    train(config, folder)
    assert weights(folder, 12) == weights(tmp_path / "straight", 12)
    assert results(folder) == results(tmp_path / "straight")
    assert not list(folder.rglob("*.partial"))


def test_a_worker_is_stopped_and_a_second_one_refused(make_config, tmp_path, capsys):
    """SIGTERM saves and exits with 130; meanwhile a second process on the folder is refused."""
    config, folder = make_config(steps=100_000, evaluate_every=100_000, save_every=100_000), tmp_path / "run"
    arguments = [str(folder), write_config(tmp_path, config)]
    with Processes(tmp_path / "said", partial(worker.main, arguments)) as first:
        wait_for(lambda: (folder / "metrics.jsonl").exists() and (folder / "metrics.jsonl").stat().st_size > 500)
        assert worker.main(arguments) == 2
        first.send(signal.SIGTERM)
        assert first.end() == [130]
    second = capsys.readouterr()
    assert "another process is training" in second.err.splitlines()[-1] and not second.out
    (said,) = first.said
    assert "run the same command again" in said.splitlines()[-1] and "Traceback" not in said + second.err
    assert steps_on_disk(folder) == [results(folder)[-1]["step"]]
