"""Commands as processes of their own: what signals do to them and to their workers, and how they end."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from attnres.cli import main
from attnres.errors import UsageError
from attnres.train import load_run
from attnres.train.folder import RunFolder
from attnres.train.trainer import Trainer
from tests.cli.conftest import TINY
from tests.train.processes import Command, wait_for

LONG = ["--steps", "1000000", "--save-every", "1000000", "--evaluate-every", "1000000"]


@pytest.fixture
def comparing(tmp_path, corpus):
    """A comparison whose first run, in a worker, has made its first steps and will not end; and that run's folder."""
    arms = ["residual", "x0", "--seeds", "1", "--workers", "1"]
    run = tmp_path / "out" / "residual" / "seed-0"
    with Command(tmp_path / "said", "compare", *arms, "--out", tmp_path / "out", *TINY, *corpus, *LONG) as command:
        metrics = run / "metrics.jsonl"
        wait_for(lambda: metrics.exists() and metrics.read_text().count('"train"') > 3)
        yield command, run


def saved(run: Path) -> list[Path]:
    return list((run / "checkpoints").glob("step-*"))


def test_a_signal_stops_the_workers_and_the_command_goes_on(comparing):
    command, run = comparing
    command.send(signal.SIGINT)
    assert command.end() == 128 + signal.SIGINT
    assert command.errors == ["attnres: stopped; the same command goes on from what is saved"]
    assert len(saved(run)) == 1 and load_run(run).step > 0


@pytest.mark.slow
def test_workers_do_not_outlive_the_command(comparing):
    """kill -9 of the command: its worker saves and stops by itself, and leaves the folder free."""
    command, run = comparing
    command.send(signal.SIGKILL)

    def is_free() -> bool:
        with suppress(UsageError), RunFolder(run).lock():
            return bool(saved(run))
        return False

    wait_for(is_free)


def test_a_signal_saves_a_run_and_says_how_to_go_on(corpus, tmp_path, capsys, monkeypatch):
    step = Trainer.train_step
    monkeypatch.setattr(Trainer, "train_step", lambda it: (os.kill(os.getpid(), signal.SIGTERM), step(it))[1])
    assert main(["train", str(tmp_path / "out"), *TINY, *corpus]) == 128 + signal.SIGTERM
    assert "run the same command again to go on" in capsys.readouterr().err.splitlines()[-1]
    assert load_run(tmp_path / "out").step == 1
