"""Runs of torchtitan's trainer from the same weights, and the one on one process that all others are compared with."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

CONNECTION = "llama3_block:block_size=5"
SAVING = ("--checkpoint.enable", "--checkpoint.interval", "3", "--checkpoint.no-last-save-model-only")


def steps(log: str) -> list[tuple[float, float]]:
    """(loss, gradient norm) of each step; ranks without the last stage log a loss below zero."""
    found = re.findall(r"step:\s+(\d+)\s+loss:\s+(\d\S*)\s+grad_norm:\s+(\S+)", log)
    return list({int(step): (float(loss), float(norm)) for step, loss, norm in found}.values())


def assert_same(losses: list, expected: list) -> None:
    """Over a few steps, which rounding moves by some 1e-5: Adam takes full steps where a gradient is near zero."""
    assert len(losses) == len(expected) > 0
    for (loss, norm), (expected_loss, expected_norm) in zip(losses, expected, strict=True):
        assert loss == pytest.approx(expected_loss, abs=1e-3)
        assert norm == pytest.approx(expected_norm, rel=2e-3)


@pytest.fixture(scope="session")
def start(tmp_path_factory):
    """start(config): a folder with the weights to begin with, because torchtitan draws others on every layout."""
    from tests.torchtitan.processes import train

    made: dict[str, Path] = {}

    def start(config: str) -> Path:
        if config not in made:
            made[config] = tmp_path_factory.mktemp("start")
            train(made[config], 1, "--checkpoint.enable", "--checkpoint.create_seed_checkpoint", config=config)
        return made[config]

    return start


@pytest.fixture(scope="session")
def run(start, tmp_path_factory):
    """run(processes, *options): the folder that torchtitan has written, and what it has logged."""
    from tests.torchtitan.processes import train

    def run(
        processes: int, *options: str, count: int = 3, config: str = CONNECTION, **environment: str
    ) -> tuple[Path, str]:
        folder = tmp_path_factory.mktemp("run") / "run"
        shutil.copytree(start(config), folder)
        options = ("--training.steps", str(count), *SAVING, *options)
        return folder, train(folder, processes, *options, config=config, **environment)

    return run


@pytest.fixture(scope="session")
def alone(run) -> tuple[Path, list]:
    folder, log = run(1, count=6)
    losses = steps(log)
    assert len(losses) == 6 and losses[-1][0] < losses[0][0]
    return folder, losses
