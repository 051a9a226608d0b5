"""A real worker process, stopped from outside."""

import json
import signal
from functools import partial
from pathlib import Path

from attnres.train import config_to_json, worker
from tests.train.conftest import results, steps_on_disk
from tests.train.processes import Processes, wait_for


def write_config(folder: Path, config) -> str:
    path = folder / "given.json"
    path.write_text(json.dumps(config_to_json(config)), encoding="utf-8")
    return str(path)


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
