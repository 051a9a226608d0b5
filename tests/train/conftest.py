"""A corpus and a model small enough that a whole run takes a fraction of a second."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from attnres.data.dataconfig import DataConfig
from attnres.model import TransformerConfig
from attnres.train import OptimizerConfig, RunConfig, read_metrics
from tests.parallel.ranks import Ranks

TEXT = "the quick brown fox jumps over the lazy dog; depth is what we mix. "
TIMING = ("tokens_per_second", "step_seconds")


@pytest.fixture(scope="session")
def data(tmp_path_factory) -> DataConfig:
    folder = tmp_path_factory.mktemp("corpus")
    for number in range(20):
        (folder / f"{number:02}.txt").write_text(f"{number} {TEXT * 8}", encoding="utf-8")
    return DataConfig(paths=(str(folder),), cache=str(tmp_path_factory.mktemp("cache")), validation_fraction=0.2)


@pytest.fixture(scope="session")
def make_config(data) -> Callable[..., RunConfig]:
    """A tiny run: `make_config(steps=20, model={"connection": "hc"}, optimizer={"lr": 1e-2})`."""

    def make(model: dict | None = None, optimizer: dict | None = None, **fields) -> RunConfig:
        shape = {"dim": 16, "layers": 2, "heads": 2, "context": 16, **(model or {})}
        defaults = {"steps": 12, "batch_size": 2, "evaluate_every": 4, "save_every": 4, "validation_tokens": 64}
        return RunConfig(
            model=TransformerConfig(**shape),
            data=data,
            optimizer=OptimizerConfig(**{"lr": 1e-2, **(optimizer or {})}),
            **{**defaults, **fields},
        )

    return make


@pytest.fixture(scope="session")
def ranks(tmp_path_factory):
    ranks = Ranks(4, tmp_path_factory.mktemp("ranks"))
    yield ranks
    ranks.stop()


@pytest.fixture(scope="session")
def pair(tmp_path_factory):
    ranks = Ranks(2, tmp_path_factory.mktemp("pair"))
    yield ranks
    ranks.stop()


def weights(folder: Path, step: int) -> bytes:
    """Bit-equal weights and optimizer state are equal files."""
    checkpoint = folder / "checkpoints" / f"step-{step:08d}"
    return (checkpoint / "model.safetensors").read_bytes() + (checkpoint / "optimizer.safetensors").read_bytes()


def results(folder: Path) -> list[dict]:
    """The metrics without what a clock decides."""
    return [{k: v for k, v in record.items() if k not in TIMING} for record in read_metrics(folder / "metrics.jsonl")]


def steps_on_disk(folder: Path) -> list[int]:
    return sorted(int(path.name[5:]) for path in (folder / "checkpoints").iterdir())


def stop_at(step: int, number: int = signal.SIGINT):
    """A listener that sends this process a signal while the given step is reported."""

    def listen(event):
        if event["kind"] == "train" and event["step"] == step:
            os.kill(os.getpid(), number)

    return listen
