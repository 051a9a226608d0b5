"""A sweep of tiny runs, trained in this process: what `attnres dynamics` begins with."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from attnres.data.dataconfig import DataConfig
from attnres.lab.engine import Planned
from attnres.lab.experiments.dynamics import DEFAULTS, DynamicsOptions, plan
from attnres.model import TransformerConfig
from attnres.train import RunConfig, train
from tests.lab.machine import machine

__all__ = ["machine"]

ARMS = ("residual", "block:block_size=2")
SITES = 6
TEXT = "the quick brown fox jumps over the lazy dog; depth is what we mix. "


@pytest.fixture
def quick_figures(monkeypatch) -> None:
    """Figures are what their charts say, and no picture: drawing takes seconds."""
    monkeypatch.setattr("attnres.lab.page.drawn", lambda picture: repr(picture).encode())


@dataclass(frozen=True)
class Sweep:
    folder: Path
    config: RunConfig
    options: list[str]
    """The same as command-line options of `attnres dynamics`."""
    planned: list[Planned]


@pytest.fixture(scope="session")
def corpus_options(tmp_path_factory) -> list[str]:
    folder = tmp_path_factory.mktemp("corpus")
    for number in range(20):
        (folder / f"{number:02}.txt").write_text(f"{number} {TEXT * 8}")
    return ["--data.paths", str(folder), "--data.cache", str(tmp_path_factory.mktemp("cache"))]


@pytest.fixture(scope="session")
def sweep(tmp_path_factory, corpus_options) -> Sweep:
    """Two seeds of two arms with three layers, trained for six steps, all checkpoints still there."""
    out = tmp_path_factory.mktemp("sweep")
    sizes = {"dim": 16, "layers": SITES // 2, "heads": 2, "context": 16}
    fields = {"steps": 6, "save_every": 2, "evaluate_every": 3, "batch_size": 2, "validation_tokens": 64}
    config = dataclasses.replace(
        DEFAULTS,
        model=TransformerConfig(**sizes),
        data=DataConfig(paths=(corpus_options[1],), cache=corpus_options[3]),
        **fields,
    )
    options = [f"--model.{name}={value}" for name, value in sizes.items()]
    options += [f"--{name.replace('_', '-')}={value}" for name, value in fields.items()]
    planned = list(plan(DynamicsOptions(arms=ARMS, seeds=2, config=config), out).runs)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    for run in planned:
        train(run.config, run.folder)
    torch.set_num_threads(threads)
    return Sweep(out, config, [*options, *corpus_options, "--out", os.fspath(out), "--seeds", "2"], planned)
