"""Commands as processes of their own: what signals do to them and to their workers, and how they end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress

import pytest

from attnres.errors import UsageError
from attnres.train import load_run, read_metrics
from attnres.train.folder import RunFolder
from tests.cli.conftest import TINY

LONG = ["--steps", "1000000", "--save-every", "1000000", "--evaluate-every", "1000000"]
DEADLINE = 240.0
"""Seconds; it only ends a test that hangs."""


def started(*arguments: str) -> subprocess.Popen[str]:
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # as in a terminal: it would inherit that of nohup pytest
    try:
        return subprocess.Popen(
            [sys.executable, "-m", "attnres", *arguments],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    finally:
        signal.signal(signal.SIGHUP, before)


def long_comparison(folder, corpus) -> subprocess.Popen[str]:
    """A comparison whose first run has made its first steps and will not end."""
    process = started(
        "compare", "residual", "x0", "--seeds", "1", "--workers", "1", "--out", str(folder), *TINY, *corpus, *LONG
    )
    metrics = folder / "residual" / "seed-0" / "metrics.jsonl"
    deadline = time.monotonic() + DEADLINE
    while not (metrics.exists() and metrics.read_text().count('"train"') > 3):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.05)
    return process


def test_a_signal_stops_the_workers_and_the_command_goes_on(tmp_path, corpus):
    process = long_comparison(tmp_path, corpus)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=DEADLINE)
    assert process.returncode == 128 + signal.SIGINT
    assert errors == "attnres: stopped; the runs are saved, and the same command goes on with them\n"
    saved = list((tmp_path / "residual" / "seed-0" / "checkpoints").glob("step-*"))
    assert len(saved) == 1 and int(saved[0].name.split("-")[1]) > 0


@pytest.mark.slow
def test_workers_do_not_outlive_the_command(tmp_path, corpus):
    """kill -9 of the command: its worker saves and stops by itself, and leaves the folder free."""
    process = long_comparison(tmp_path, corpus)
    process.kill()
    process.communicate()
    folder = tmp_path / "residual" / "seed-0"
    deadline = time.monotonic() + DEADLINE
    while not list((folder / "checkpoints").glob("step-*")):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    while True:
        with suppress(UsageError), RunFolder(folder).lock():
            break
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_signal_saves_a_run_and_says_how_to_go_on(corpus, tmp_path):
    process = started("train", str(tmp_path / "out"), *TINY, *corpus, *LONG)
    try:
        assert process.stdout is not None
        while line := process.stdout.readline():
            if line.startswith("step 0: validation loss"):
                break
        process.send_signal(signal.SIGTERM)
        errors = process.communicate(timeout=DEADLINE)[1]
    finally:
        process.kill()
    assert process.returncode == 128 + signal.SIGTERM
    assert "run the same command again to go on" in errors.splitlines()[-1] and "Traceback" not in errors
    assert load_run(tmp_path / "out").step == read_metrics(tmp_path / "out" / "metrics.jsonl")[-1]["step"]


def program(text: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=DEADLINE)


@pytest.mark.parametrize(
    ("name", "code", "said"), [("SIGINT", 130, "interrupted"), ("SIGTERM", 143, "stopped by SIGTERM")]
)
def test_a_signal_while_modules_are_imported_ends_the_process(name, code, said):
    done = program(
        "import builtins, os, signal, sys\n"
        "import attnres.cli as cli\n"
        "def command(*_):\n"
        "    try:\n"
        f"        os.kill(os.getpid(), signal.{name})\n"
        "    except KeyboardInterrupt:\n"
        "        pass  # as torch's import can\n"
        "    return lambda: 0\n"
        "cli._command = command\n"
        "sys.exit(cli.main(['cost']))\n"
    )
    assert (done.returncode, done.stderr) == (code, f"attnres: {said}\n")


def test_a_reader_of_the_overview_may_go():
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([sys.executable, "-m", "attnres"], stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")
