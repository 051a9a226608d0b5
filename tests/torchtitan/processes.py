"""torchtitan's trainer on a few processes of a CPU, as torchrun starts it, but forked from one that has imported it.

The import takes eight seconds of a core, and a run of the debug model two.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import socket
import sys
import tempfile
from multiprocessing.connection import wait
from pathlib import Path

ROOT = Path(__file__).parents[2]
TIME_LIMIT = 600.0

_forked = multiprocessing.get_context("forkserver")
_forked.set_forkserver_preload(["tests.torchtitan.ready"])


def train(folder: Path, processes: int, *options: str, config: str, **environment: str) -> str:
    """Run `torchtitan.train` with those options and return what all ranks logged, without colours."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    arguments = ["--module", "tests.torchtitan", "--config", config, "--dump_folder", str(folder), *options]
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(processes), **environment}
    with tempfile.TemporaryDirectory() as logs:
        files = [Path(logs, str(rank)) for rank in range(processes)]
        ranks = [_forked.Process(target=_rank, args=(rank, file, common, arguments)) for rank, file in enumerate(files)]
        for rank in ranks:
            rank.start()
        left = {rank.sentinel: rank for rank in ranks}
        while left and (ended := wait(left, TIME_LIMIT)):
            if any(left.pop(sentinel).exitcode for sentinel in ended):  # type: ignore[call-overload]
                break
        for rank in left.values():
            rank.kill()
        for rank in ranks:
            rank.join()
        log = re.sub(r"\x1b\[[0-9;]*m", "", "".join(file.read_text() for file in files))
    codes = [rank.exitcode for rank in ranks]
    assert codes == [0] * processes, f"exit codes {codes}\n{log[-6000:]}"
    return log


def _rank(rank: int, log: Path, environment: dict[str, str], arguments: list[str]) -> None:
    file = os.open(log, os.O_WRONLY | os.O_CREAT)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.chdir(ROOT)
    os.environ.update(environment, RANK=str(rank), LOCAL_RANK=str(rank))
    from tests.torchtitan import ready

    sys.argv = ["train", *arguments]
    ready.torchtitan.train.main()
