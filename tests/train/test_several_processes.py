"""The command in several processes, as torchrun starts them. A killed one: test_torchrun.py."""

import json
import signal
from pathlib import Path

import torch

from attnres.parallel.layout import Layout
from attnres.train import config_to_json
from tests.train.conftest import steps_on_disk
from tests.train.many import contents, go
from tests.train.processes import Command, Processes

RECIPE = """
import json, os, signal
from attnres.train import config_from_json
from attnres.train.trainer import Trainer

plain = Trainer.train_step

def train_step(trainer):
    if (os.environ["RANK"], trainer.step) in {signals!r}:
        os.kill(os.getpid(), {signals!r}[os.environ["RANK"], trainer.step])
    return plain(trainer)

Trainer.train_step = train_step
config = config_from_json(json.loads({text!r}))
"""


def recipe(folder: Path, config, name: str = "run.py", signals: dict[tuple[str, int], int] | None = None) -> Path:
    """How a test hands its configuration to the command. signals: what a rank sends itself in which step."""
    path = folder / name
    text = RECIPE.format(text=json.dumps(config_to_json(config)), signals=signals or {})
    path.write_text(text, encoding="utf-8")
    return path


def both(folder: Path, run: Path, file: Path, *more: object) -> Processes:
    return Processes(folder, *[Command("train", run, "--recipe", file, "--device", "cpu", *more)] * 2)


def assert_goes_on_to_the_same_bits(config, folder: Path, pair, tmp_path: Path) -> None:
    with both(tmp_path / "again", folder, recipe(tmp_path, config), "--shard", 2) as run:
        assert run.end() == [0, 0], run.said
    pair.run(go, config, Layout(shard=2), config.steps, None, tmp_path / "straight", ranks=2)
    straight, found = contents(tmp_path / "straight", config.steps), contents(folder / "checkpoints", config.steps)
    assert straight.keys() == found.keys()
    assert all(torch.equal(straight[name], found[name]) for name in straight)


def test_two_processes_are_stopped_and_go_on_to_the_same_bits(make_config, pair, tmp_path):
    """Ctrl-C, which both hear, and the same command again."""
    config = make_config(batch_size=4, steps=8, save_every=8, evaluate_every=8, model={"layers": 1})
    stops = recipe(tmp_path, config, "stops.py", {(rank, 5): int(signal.SIGINT) for rank in "01"})
    with both(tmp_path / "first", tmp_path / "run", stops, "--shard", 2) as run:
        assert run.end() == [130, 130], run.said
        (line,) = run.errors
        assert "stopped at step 6 of 8" in line
    assert steps_on_disk(tmp_path / "run") == [6]
    assert_goes_on_to_the_same_bits(config, tmp_path / "run", pair, tmp_path)
