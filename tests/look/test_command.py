"""`attnres look` as a user starts it: its address, what ends it, what it refuses."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from attnres.cli import main
from attnres.lab.experiments import compare
from attnres.look.server import SAMPLE
from attnres.train import train
from attnres.train.sweep import JobState
from tests.look.runs import Client, small_config


@contextmanager
def started(*arguments: str | Path) -> Iterator[tuple[subprocess.Popen[str], Client]]:
    """The process, and what talks to it."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # as in a terminal: it would inherit that of nohup pytest
    process = subprocess.Popen(
        [sys.executable, "-m", "attnres", "look", *map(str, arguments), "--no-browser"],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    signal.signal(signal.SIGHUP, before)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.search(r"http://127\.0\.0\.1:(\d+)/\?token=([\w-]{20,})\n", line)
        assert found, line
        yield process, Client(int(found[1]), found[2])
    finally:
        process.kill()
        process.communicate()


def test_a_signal_in_the_middle_of_an_answer_ends_it_without_a_word(runs):
    with started(*runs[:2]) as (process, client):
        assert [model["name"] for model in client.session()["models"]] == ["residual", "block"]
        with socket.create_connection(("127.0.0.1", client.port)) as connection:  # who goes in the middle of a request
            head = f"POST /api/look HTTP/1.1\r\nHost: 127.0.0.1:{client.port}\r\nX-Attnres-Token: {client.token}\r\n"
            connection.sendall(f"{head}Content-Length: 100\r\n\r\n{{}}".encode())
        reading = client.open("POST", "/api/continue", {"view": {"model": 1, "text": "the brown dog"}})
        assert reading.readline()
        process.send_signal(signal.SIGINT)
        assert reading.read() is not None, "the stream has its end"
        out, err = process.communicate(timeout=120)
        assert (process.returncode, out, err) == (0, "", "")
        with pytest.raises(OSError):
            client.session()


def test_bad_arguments_are_said_in_one_line(runs, client, tmp_path, capsys, monkeypatch):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"model_type": "llama"}')
    for arguments, says in [
        ([str(tmp_path)], "not a run folder"),
        ([str(runs[0]), f"{runs[0]}/../{runs[0].name}"], "is given twice"),
        ([str(tmp_path / "model")], "there is no tokenizer.json"),
        ([str(runs[0]), "--token", "short"], "--token must be 16"),
        ([str(runs[0]), "--port", str(client.port)], f"port {client.port}"),
    ]:
        assert main(["look", *arguments, "--no-browser"]) == 2
        err = capsys.readouterr().err
        assert says in err and err.count("\n") == 1
    find = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name, *rest: None if name == "uvicorn" else find(name, *rest)
    )
    assert main(["look", str(runs[0])]) == 2
    assert "look needs uvicorn" in capsys.readouterr().err


def test_with_nothing_given_a_pair_is_trained_first(tmp_path, capsys, monkeypatch):
    def run_jobs(jobs, workers, watch):
        states = [JobState(job, status="done") for job in jobs]
        for job in jobs:
            train(job.config, job.folder)
        watch(states)
        return states

    opened = []
    monkeypatch.setattr("attnres.look.prepare.run_jobs", run_jobs)
    monkeypatch.setattr(compare, "DEFAULTS", small_config(tmp_path, "full"))
    monkeypatch.setattr("attnres.look.start.start", lambda microscope, *_: opened.append(microscope.session()))
    monkeypatch.chdir(tmp_path)
    assert main(["look"]) == 0 and "is trained in runs/look" in capsys.readouterr().out
    assert [model.name for model in opened[0].models] == ["block", "residual"]
    assert opened[0].text == SAMPLE
