"""The command under torchrun: what a user sees when all goes well, and when a process dies or differs."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

import attnres
from attnres.train import config_to_json, read_metrics, train
from attnres.train.folder import RunFolder
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


def torchrun(
    *arguments: object, processes: int, restarts: int = 0, meeting: tuple[str, ...] = ("--standalone",)
) -> subprocess.Popen:
    launcher = ["torch.distributed.run", *meeting, f"--nproc-per-node={processes}", f"--max-restarts={restarts}"]
    # The -- keeps torchrun from reading our --virtual as one of its own options.
    command = [sys.executable, "-m", *launcher, "-m", "--", "attnres", "train", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment())


def by_hand(
    commands: list[list[object]], port: int, size: int | None = None, folders: tuple[Path | None, ...] = (None, None)
) -> list[tuple[int, str, float]]:
    """Start one process per command in its folder, as a launcher would; (exit code, stderr, seconds) of each."""
    began = time.monotonic()
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "attnres", "train", *map(str, command)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            cwd=folder,
            env=environment(
                RANK=str(rank), WORLD_SIZE=str(size or len(commands)), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port)
            ),
        )
        for rank, (command, folder) in enumerate(zip(commands, folders, strict=False))
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


def is_open(port: int) -> bool:
    with socket.socket() as visitor:
        return visitor.connect_ex(("localhost", port)) == 0


@pytest.fixture
def port(tmp_path_factory) -> int:
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
        "--virtual",
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
    (saved,) = [record for record in read_metrics(tmp_path / "run" / "metrics.jsonl") if record["kind"] == "processes"]
    pace = ("peak_memory_bytes", "step_seconds", "data_seconds", "waited_seconds", "share_of_peak")
    assert all(len(saved[name]) == 2 and min(saved[name]) >= 0 for name in pace) and saved.keys() == {
        "kind",
        "step",
        *pace,
    }
    events = []
    summary = train(config, tmp_path / "run", events.append)
    assert 5 <= events[0]["step"] == saved["step"] < 40  # the first of the six records is the evaluation of step 0
    expected = train(config, tmp_path / "one")
    assert summary["validation_loss"] == pytest.approx(expected["validation_loss"], rel=1e-3)


@pytest.mark.timeout(LIMIT)
def test_torchrun_goes_on_with_the_machines_that_are_left(make_config, tmp_path, port):
    """Elastic: of two "machines" with a process each, one is lost, and the other finishes the run alone."""
    config = make_config(batch_size=4, steps=60, save_every=10, evaluate_every=60, optimizer={"hidden": "adamw"})
    arguments = [tmp_path / "run", "--recipe", recipe(tmp_path, config)]
    patience = "last_call_timeout=10,keep_alive_interval=1,keep_alive_max_attempt=2"
    meeting = ("--nnodes=1:2", "--rdzv-backend=c10d", f"--rdzv-endpoint=localhost:{port}", f"--rdzv-conf={patience}")
    left = torchrun(*arguments, processes=1, restarts=2, meeting=meeting)
    wait_for(lambda: is_open(port), left)  # the first holds what they agree on, so it must stay
    lost = torchrun(*arguments, processes=1, restarts=2, meeting=meeting)
    wait_for(lambda: len(read_metrics(tmp_path / "run" / "metrics.jsonl")) > 13, left)
    for pid in [*children(lost.pid), lost.pid]:
        os.kill(pid, signal.SIGKILL)
    lost.communicate()
    out, error = left.communicate(timeout=LIMIT)
    assert left.returncode == 0, error
    assert error.count("attnres: ") == 1 and "has lost another one" in error
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert "going on from step" in out and summary["steps"] == 60
    expected = train(config, tmp_path / "one")
    assert summary["validation_loss"] == pytest.approx(expected["validation_loss"], rel=1e-3)


@pytest.mark.timeout(LIMIT)
def test_processes_end_with_torchrun_however_it_went(make_config, tmp_path):
    config = make_config(batch_size=4, steps=10**6, save_every=10**6, evaluate_every=10**6)
    run = torchrun(tmp_path / "run", "--recipe", recipe(tmp_path, config), processes=2)
    wait_for(lambda: len(read_metrics(tmp_path / "run" / "metrics.jsonl")) > 1, run)
    orphans = children(run.pid)
    run.kill()
    try:
        deadline = time.monotonic() + 60
        while any(Path(f"/proc/{pid}").exists() for pid in orphans):
            assert time.monotonic() < deadline
            time.sleep(0.2)
    finally:
        for pid in orphans:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        run.communicate()
    assert RunFolder(tmp_path / "run").checkpoints.newest_good(), "saved on the way out"


SLOW_DISK = """
import os, time
from attnres.train import distributed
from attnres.train.tensorfile import TensorFile
def slow(plain, seconds):
    def slowed(*arguments):
        time.sleep(seconds.pop() if seconds and os.environ["RANK"] == "0" else 0)
        return plain(*arguments)
    return slowed
distributed.block_hashes = slow(distributed.block_hashes, [0, 14])
TensorFile.write = slow(TensorFile.write, [0, 14])
"""


@pytest.mark.timeout(LIMIT)
def test_a_slow_disk_is_no_lost_process(make_config, tmp_path):
    """Reading a checkpoint, to go on from it, and writing one take longer than processes wait for each other."""

    def stop(event):
        if event["kind"] == "saved":
            raise KeyboardInterrupt

    config = make_config(batch_size=4, steps=4, save_every=2)
    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path / "run", stop)
    path = recipe(tmp_path, config)
    path.write_text(SLOW_DISK + path.read_text())
    run = torchrun(tmp_path / "run", "--recipe", path, "--timeout", 12, processes=2)
    out, error = run.communicate(timeout=LIMIT)
    assert run.returncode == 0, error
    assert "going on from step 2 of 4" in out


@pytest.mark.timeout(LIMIT)
def test_what_is_wrong_is_the_last_that_torchrun_says(make_config, tmp_path):
    (tmp_path / "notes.txt").touch()
    run = torchrun(tmp_path, "--recipe", recipe(tmp_path, make_config(batch_size=4)), processes=2)
    _, error = run.communicate(timeout=LIMIT)
    assert run.returncode == 1
    assert "holds files and no run" in error[error.rindex("Root Cause") :]


@pytest.mark.timeout(LIMIT)
def test_torchrun_does_not_end_the_process_that_has_to_say_why(make_config, tmp_path):
    """The others ended at once, and the first one with them if it came later."""
    path = recipe(tmp_path, make_config(batch_size=4))
    path.write_text('import os, time\ntime.sleep(2 * (os.environ["RANK"] == "0"))\n' + path.read_text())
    run = torchrun(tmp_path / "run", "--recipe", path, "--shard", 3, processes=2)
    _, error = run.communicate(timeout=LIMIT)
    assert run.returncode == 1
    assert len([line for line in error.splitlines() if line.startswith("attnres: ")]) == 1, error


@pytest.mark.timeout(LIMIT)
def test_a_folder_that_is_not_shared_is_refused_before_the_first_step(make_config, tmp_path, port):
    """Two machines that have different disks at the same path: nothing that they wrote could be joined."""
    config = recipe(tmp_path, make_config(batch_size=4))
    folders = (tmp_path / "one", tmp_path / "other")
    for folder in folders:
        folder.mkdir()
    ended = by_hand([["run", "--recipe", config, "--shard", 2]] * 2, port, folders=folders)
    assert [code for code, _, _ in ended] == [2, 2], ended
    lines = [line for _, error, _ in ended for line in error.splitlines() if "attnres: " in line]
    assert len(lines) == 1 and "run: process 1 does not see what process 0 writes there" in lines[0], ended
    assert not list(tmp_path.rglob("config.json"))


LATE = """
import os, time
from attnres.parallel import world
plain = world._first_to_speak

def late(store):
    time.sleep(2 * int(os.environ["RANK"]))
    return plain(store)

world._first_to_speak = late
"""


@pytest.mark.timeout(LIMIT)
def test_a_process_that_comes_late_to_an_error_of_all_finds_it_said(make_config, tmp_path, port):
    """The first process keeps what they agree by, and was gone with it when the second asked."""
    path = recipe(tmp_path, make_config(batch_size=4))
    path.write_text(LATE + path.read_text())
    (tmp_path / "notes.txt").touch()
    ended = by_hand([[tmp_path, "--recipe", path]] * 2, port)
    assert [code for code, _, _ in ended] == [2, 2], ended
    lines = [line for _, error, _ in ended for line in error.splitlines() if "attnres: " in line]
    assert len(lines) == 1 and "holds files and no run" in lines[0], ended


def machines(folder: Path) -> tuple[Path, Path]:
    """Two folders with two rules in one file's name, as machines have whose checkouts differ."""
    for rank in range(2):
        (folder / f"machine-{rank}").mkdir()
        rule = f"from attnres.connections.block import Block\n\n\nclass My(Block):\n    rank = {rank}\n"
        (folder / f"machine-{rank}" / "rule.py").write_text(rule)
    return folder / "machine-0", folder / "machine-1"


@pytest.mark.timeout(LIMIT)
def test_bad_input_is_one_line_from_one_process(make_config, tmp_path, port):
    config = make_config(batch_size=4, accumulate=2)
    one, other = recipe(tmp_path, config), recipe(tmp_path, make_config(batch_size=4, accumulate=2, seed=5), "other.py")

    def said(*commands: list[object], size: int | None = None, folders: tuple[Path | None, ...] = (None, None)) -> str:
        nonlocal port
        ended = by_hand([[tmp_path / "run", *command] for command in commands], port, size, folders)
        port += 1
        assert all(code in (1, 2) for code, _, _ in ended), ended
        lines = [line for _, error, _ in ended for line in error.splitlines() if "attnres: " in line]
        assert len(lines) == 1, ended
        assert "Traceback" not in "".join(error for _, error, _ in ended)
        assert not (tmp_path / "run" / "config.json").exists()
        return lines[0]

    assert "process 1 differs from process 0 in its configuration" in said(["--recipe", one], ["--recipe", other])
    package = Path(attnres.__file__).parent
    changed = shutil.copytree(package, tmp_path / "newer" / "attnres", ignore=shutil.ignore_patterns("__pycache__"))
    with open(changed / "model" / "transformer.py", "a") as module:
        module.write("# a later commit\n")
    newer = said(["--recipe", one], ["--recipe", one], folders=(None, changed.parent))
    assert "process 1 differs from process 0 in its code" in newer
    own = ["--recipe", one, "--model.connection", "rule.py:My"]
    rules = said(own, own, folders=machines(tmp_path))
    assert "process 1 differs from process 0 in its connection's file" in rules
    missing = said(["--recipe", one, "--timeout", 2], size=2)
    assert "has not met all the others within 2 s" in missing
    with socket.socket() as taken:
        taken.bind(("", port))
        taken.listen()
        assert f"port {port} of this machine is in use by another program" in said(["--recipe", one], size=2)
