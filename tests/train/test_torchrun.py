"""torchrun itself, once: it starts a killed process again, and leaves nothing behind."""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from attnres.parallel.layout import Layout
from attnres.train import config_to_json
from attnres.train.folder import RunFolder
from tests.train.many import contents, go
from tests.train.processes import LIMIT, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2 * LIMIT)]


RECIPE = """
import json, os, signal
from attnres.train import config_from_json
from attnres.train.trainer import Trainer

plain = Trainer.train_step

def train_step(trainer):
    first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    if first and os.environ["RANK"] == "1" and trainer.step == 4:
        os.kill(os.getpid(), signal.SIGKILL)
    return plain(trainer)

Trainer.train_step = train_step
config = config_from_json(json.loads({config!r}))
"""


def torchrun(*arguments: object, restarts: int = 0) -> subprocess.Popen:
    launcher = ["torch.distributed.run", "--standalone", "--nproc-per-node=2", f"--max-restarts={restarts}"]
    # The -- keeps torchrun from reading options of ours as its own.
    command = [sys.executable, "-m", *launcher, "-m", "--", "attnres", "train", *map(str, arguments)]
    quiet = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=quiet)


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_a_killed_process_is_started_again_and_all_save_and_end_when_torchrun_is_gone(make_config, pair, tmp_path):
    """To the bits of a run that nothing killed. Then torchrun itself is killed."""
    config = make_config(
        batch_size=4, accumulate=4, steps=10**6, save_every=3, keep=10**6, evaluate_every=10**6, model={"layers": 2}
    )
    file = tmp_path / "run.py"
    file.write_text(RECIPE.format(config=json.dumps(config_to_json(config))), encoding="utf-8")
    checkpoints = RunFolder(tmp_path / "run").checkpoints
    options = ["--recipe", file, "--device", "cpu", "--pipeline", 2, "--virtual", 2]
    run = torchrun(tmp_path / "run", *options, restarts=1)
    wait_for(lambda: checkpoints.place(6).exists() or run.poll() is not None)
    orphans = children(run.pid) if run.poll() is None else []
    run.kill()
    try:
        wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in orphans))
    finally:
        for pid in orphans:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        out, error = run.communicate()
    assert len(orphans) == 2 and "going on from step 3" in out, error
    newest = checkpoints.newest_good()
    *_, last = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert newest and newest.step >= json.loads(last)["step"], "saved on the way out"
    pair.run(go, config, Layout(pipeline=2, virtual=2, shard=1), 6, None, tmp_path / "straight", ranks=2)
    straight, found = contents(tmp_path / "straight", 6), contents(tmp_path / "run" / "checkpoints", 6)
    assert straight.keys() == found.keys() and all(torch.equal(straight[name], found[name]) for name in straight)
