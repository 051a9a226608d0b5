"""Files of 1.0.0, in tests/data/v1, are loaded and gone on with: what 1.x keeps. They are never made again."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

import attnres.hf
from attnres.lab.runs import read_record
from attnres.train import train
from attnres.train.folder import RunFolder

V1 = Path(__file__).parent / "data" / "v1"


def test_a_run_goes_on(tmp_path, monkeypatch):
    """As a stop behind step 4 leaves it. By the wheel of 1.0.0:

    attnres train run --data.paths text.txt --data.validation-fraction 0.2 --model.dim 8 --model.layers 2
        --model.heads 1 --model.context 16 --model.connection block:block_size=2 --optimizer.lr 0.01 --steps 5
        --batch-size 2 --evaluate-every 4 --validation-tokens 64 --save-every 4
    """
    shutil.copytree(V1, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    config, events = RunFolder("run").config(), []
    train(replace(config, data=replace(config.data, cache=str(tmp_path / "cache"))), "run", events.append)
    losses = {event["kind"]: event["loss"] for event in events if event.get("step") == 5 and "loss" in event}
    assert losses == pytest.approx({"train": 5.522749424, "eval": 5.526735127}, rel=1e-6)
    assert not any(event["kind"] == "train" and event["step"] < 5 for event in events), "it began anew"


@pytest.mark.parametrize("load", [AutoModelForCausalLM.from_pretrained, attnres.hf.load], ids=["Auto", "ours"])
def test_an_attached_checkpoint(load):
    model = load(V1 / "attached")
    tokens = torch.arange(10)[None] % 7
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for expected in (2.775611639, 2.599454403):
        loss = model(tokens, labels=tokens).loss
        assert loss.item() == pytest.approx(expected, rel=1e-6)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def test_a_record():
    """By the wheel of 1.0.0, with the command that it names."""
    record = read_record(V1 / "comparison.json", "comparison")
    losses = [(run.arm, run.seed, round(run.loss, 4)) for run in record.runs]
    block = "block:block_size=2"
    assert losses == [("residual", 0, 5.5335), (block, 0, 5.5333), ("residual", 1, 5.5403), (block, 1, 5.54)]
