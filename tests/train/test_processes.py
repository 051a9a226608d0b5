"""Real processes that are killed, stopped and started again."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from attnres.train import config_to_json, train
from tests.train.conftest import results, steps_on_disk, weights

KILLER = """
import os, random, signal, sys, time
from attnres.train.worker import main

folder, config, seed = sys.argv[1], sys.argv[2], int(sys.argv[3])
delays = random.Random(seed)
kills = 0
while True:
    child = os.fork()  # a process of its own, without the second that importing torch takes
    if child == 0:
        os._exit(main([folder, config]))
    if kills < 12:
        time.sleep(delays.uniform(0.0, 0.5))
        os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    if not os.WIFSIGNALED(status):
        print(kills)
        sys.exit(os.waitstatus_to_exitcode(status))
    kills += 1
"""
"""Runs the worker until a random moment, again and again, and at last to its end; prints how often it was killed."""


@pytest.fixture
def environment():
    return {**os.environ, "OMP_NUM_THREADS": "1"}


@pytest.fixture
def write_config(tmp_path):
    def write(config):
        path = tmp_path / "given.json"
        path.write_text(json.dumps(config_to_json(config)))
        return path

    return write


def test_kill_at_any_moment_and_go_on_to_the_same_bits(make_config, write_config, tmp_path, environment):
    config = make_config(steps=120, evaluate_every=10, save_every=3)
    train(config, tmp_path / "straight")
    command = [sys.executable, "-c", KILLER, tmp_path / "killed", write_config(config), "1"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert int(done.stdout) >= 4, "the run must be killed often enough for the test to say anything"
    assert weights(tmp_path / "killed", 120) == weights(tmp_path / "straight", 120)
    assert results(tmp_path / "killed") == results(tmp_path / "straight")
    assert [path.name for path in (tmp_path / "killed").rglob("*.partial")] == []


def wait_for(path, size):
    deadline = time.monotonic() + 60
    while not (path.exists() and path.stat().st_size > size):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_worker_stopped_and_refused(make_config, write_config, tmp_path, environment):
    """SIGTERM saves and exits with 130; meanwhile a second process on the folder is refused."""
    config, folder = make_config(steps=100_000, evaluate_every=100_000, save_every=100_000), tmp_path / "run"
    command = [sys.executable, "-m", "attnres.train.worker", folder, write_config(config)]
    first = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        wait_for(folder / "metrics.jsonl", 500)
        second = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
        first.send_signal(signal.SIGTERM)
        output, errors = first.communicate(timeout=60)
    finally:
        first.kill()
    assert (second.returncode, second.stdout) == (2, "")
    assert "another process is training" in second.stderr
    assert (first.returncode, output) == (130, "")
    assert "run the same command again" in errors
    assert errors.count("\n") == second.stderr.count("\n") == 1
    last = results(folder)[-1]["step"]
    assert steps_on_disk(folder) == [last]


@pytest.mark.parametrize(
    "content, message",
    [("{", "not valid JSON"), ('{"stepps": 1}', "stepps"), (None, "No such file"), ('{"steps": 0}', "steps")],
)
def test_worker_says_what_is_wrong(tmp_path, capsys, content, message):
    from attnres.train.worker import main

    file = tmp_path / "config.json"
    if content is not None:
        file.write_text(content)
    assert main([str(tmp_path / "run"), str(file)]) in (1, 2)
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""
    assert main([]) == 2
