"""recipes/ladder/compiled.py: the trainer's own steps, compiled."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from attnres.data import open_corpus
from attnres.errors import UsageError
from attnres.train.folder import fit_vocabulary
from attnres.train.trainer import Trainer
from tests.recipes.test_on_gpu import of_rule
from tests.recipes.test_twice import config as config

ROOT = Path(__file__).parents[2]
COMPILED = ROOT / "recipes" / "ladder" / "compiled.py"
RECORD = ROOT / "results" / "ladder-32.json"


@pytest.fixture
def recipe(monkeypatch) -> dict:
    monkeypatch.syspath_prepend(COMPILED.parent)
    return runpy.run_path(str(COMPILED))


@pytest.mark.filterwarnings("ignore::UserWarning")  # what torch.compile would advise
def test_steps_are_the_trainers(recipe, config):
    config = of_rule(config, "rms-block", "cpu")
    corpus = open_corpus(config.data)
    config = fit_vocabulary(config, corpus.vocab_size)
    ours, theirs = recipe["CompiledTrainer"](config, corpus), Trainer(config, corpus)
    eager = 0

    def count(*_: object) -> None:
        nonlocal eager
        if not torch.compiler.is_compiling():
            eager += 1

    ours.model.sublayers[0].register_forward_pre_hook(count)
    for _ in range(config.steps):
        made, expected = ours.train_step(), theirs.train_step()
        assert made["lr"] == expected["lr"]
        for name in ("loss", "grad_norm"):
            assert made[name] == pytest.approx(expected[name], rel=1e-4)
    assert not eager, "a step ran as it is"
    assert ours.evaluate() == pytest.approx(theirs.evaluate(), rel=1e-4)
    assert eager, "an evaluation was compiled"


def test_two_parts_share_the_runs_seed_by_seed_but_for_those_of_the_record(recipe, monkeypatch, tmp_path):
    trained: list[tuple] = []
    within = recipe["main"].__globals__
    monkeypatch.setitem(within, "train_one", lambda run: trained.append((run.arm, run.seed, run.job.config.steps)))
    monkeypatch.setattr(within["loop"], "_trainer", None)
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    recipe["main"](tmp_path, RECORD, ["32x24"], "1/1")
    whole = trained.copy()
    assert len(whole) == 21 and {steps for _, _, steps in whole} == {2160}
    assert [seed for _, seed, _ in whole] == sorted(seed for _, seed, _ in whole)
    trained.clear()
    recipe["main"](tmp_path, RECORD, ["32x24"], "1/2")
    assert trained == whole[::2]
    recipe["main"](tmp_path, RECORD, ["32x24"], "2/2")
    assert trained == [*whole[::2], *whole[1::2]]
    trained.clear()
    recipe["main"](tmp_path, RECORD, ["32x24@10"], "1/1")
    assert not trained, "of half the steps they are in the record"


def test_what_cannot_run_is_refused_in_one_line(recipe, tmp_path):
    for part in ("0/2", "3/2", "2", "a/b", "1/2/3", "-1/2"):
        with pytest.raises(UsageError, match="PART"):
            recipe["share"](part)
    assert recipe["share"]("2/3") == (1, 3)

    def ran(*arguments: object, part: str = "1/1") -> subprocess.CompletedProcess[str]:
        command = [sys.executable, COMPILED, *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PART": part})

    assert "python recipes/ladder/compiled.py" in ran().stderr
    for refused in (ran(tmp_path, RECORD, "32x49"), ran(tmp_path, RECORD, "32x48", part="2/1")):
        assert refused.returncode == 1 and refused.stderr.startswith("attnres: ")
        assert refused.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())
