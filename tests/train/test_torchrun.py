"""The command under torchrun: what a user sees when all goes well, and when a process dies or differs."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from attnres.train import config_to_json, read_metrics, train
from tests.train.conftest import weights

LIMIT = 200  # seconds, for whatever is started here

# Recipes are how a test hands its configuration to the command.
RECIPE = """
import json
from attnres.train import config_from_json
config = config_from_json(json.loads({text!r}))
"""


def environment(**extra) -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", **extra}


def recipe(folder: Path, config, name: str = "run.py") -> Path:
    path = folder / name
    path.write_text(RECIPE.format(text=json.dumps(config_to_json(config))))
    return path


def torchrun(*arguments: object, processes: int, restarts: int = 0) -> subprocess.Popen:
    launcher = ["torch.distributed.run", "--standalone", f"--nproc-per-node={processes}", f"--max-restarts={restarts}"]
    command = [sys.executable, "-m", *launcher, "-m", "attnres", "train", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment())


def by_hand(commands: list[list[object]], port: int, size: int | None = None) -> list[tuple[int, str, float]]:
    """Start one process per command, as a launcher would; (exit code, stderr, seconds) of each."""
    began = time.monotonic()
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "attnres", "train", *map(str, command)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(
                RANK=str(rank), WORLD_SIZE=str(size or len(commands)), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port)
            ),
        )
        for rank, command in enumerate(commands)
    ]
    ended = [(process, process.communicate(timeout=LIMIT)[1]) for process in started]
    return [(process.returncode, error, time.monotonic() - began) for process, error in ended]


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def wait_for(done, process: subprocess.Popen) -> None:
    deadline = time.monotonic() + LIMIT
    while not done():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def port(tmp_path_factory) -> int:
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@pytest.mark.timeout(LIMIT)
def test_a_killed_process_ends_the_others_and_torchrun_goes_on_to_the_same_bits(make_config, tmp_path):
    config = make_config(batch_size=4, accumulate=4, steps=30, save_every=10, evaluate_every=30, model={"layers": 4})
    options = [
        "--recipe",
        recipe(tmp_path, config),
        "--pipeline",
        2,
        "--virtual-stages",
        2,
        "--schedule",
        "interleaved-1f1b",
    ]
    straight = torchrun(tmp_path / "straight", *options, processes=2)
    killed = torchrun(tmp_path / "killed", *options, processes=2, restarts=1)
    wait_for(lambda: len(read_metrics(tmp_path / "killed" / "metrics.jsonl")) > 13, killed)
    os.kill(children(killed.pid)[1], signal.SIGKILL)
    out, error = killed.communicate(timeout=LIMIT)
    assert killed.returncode == 0, error
    assert error.count("attnres: ") == 1 and "has lost another one" in error and "start all of them again" in error
    assert "going on from step" in out
    assert straight.communicate(timeout=LIMIT) and straight.returncode == 0
    assert weights(tmp_path / "killed", 30) == weights(tmp_path / "straight", 30)


@pytest.mark.timeout(LIMIT)
def test_fewer_processes_go_on_where_more_stopped(make_config, tmp_path):
    """Elastic: a run of two processes is interrupted, and one process finishes it."""
    config = make_config(batch_size=4, steps=40, save_every=40, evaluate_every=40, optimizer={"hidden": "adamw"})
    run = torchrun(tmp_path / "run", "--recipe", recipe(tmp_path, config), processes=2)
    wait_for(lambda: len(read_metrics(tmp_path / "run" / "metrics.jsonl")) > 5, run)
    for child in children(run.pid):
        os.kill(child, signal.SIGINT)
    _, error = run.communicate(timeout=LIMIT)
    assert error.count("attnres: stopped at step") == 1
    events = []
    summary = train(config, tmp_path / "run", events.append)
    assert 5 < events[0]["step"] < 40
    expected = train(config, tmp_path / "one")
    assert summary["validation_loss"] == pytest.approx(expected["validation_loss"], rel=1e-3)


@pytest.mark.timeout(LIMIT)
def test_bad_input_is_one_line_from_one_process(make_config, tmp_path, port):
    config = make_config(batch_size=4, accumulate=2)
    one, other = recipe(tmp_path, config), recipe(tmp_path, make_config(batch_size=4, accumulate=2, seed=5), "other.py")

    def said(*commands: list[object], size: int | None = None) -> str:
        nonlocal port
        ended = by_hand([[tmp_path / "run", *command] for command in commands], port, size)
        port += 1
        assert all(code in (1, 2) for code, _, _ in ended), ended
        lines = [line for _, error, _ in ended for line in error.splitlines() if "attnres: " in line]
        assert len(lines) == 1, ended
        assert "Traceback" not in "".join(error for _, error, _ in ended)
        assert not (tmp_path / "run" / "config.json").exists()
        return lines[0]

    assert "process 1 differs from process 0 in its configuration" in said(["--recipe", one], ["--recipe", other])
    missing = said(["--recipe", one, "--timeout", 2], size=2)
    assert "has not met all the others within 2 s" in missing
