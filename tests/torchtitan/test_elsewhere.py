"""Between torchtitan and transformers: the same weights give the same losses."""

from __future__ import annotations

import itertools

import pytest
import torch

pytest.importorskip("torchtitan", reason="needs torch 2.14: make torchtitan has an environment for it")

from attnres.hf import load
from attnres.hf.attach import connection_of
from attnres.torchtitan.export import main as export_command
from attnres.torchtitan.export import transformers_model
from tests.torchtitan.config_registry import Tokens, configuration
from tests.torchtitan.conftest import CONNECTION, steps
from tests.torchtitan.processes import train

pytestmark = pytest.mark.timeout(900)  # several trainers of several processes on a machine of two cores

BATCH = 4


def loss_at(model, step: int) -> float:
    """The loss of a model of transformers on the batch of that step."""
    drawn = itertools.islice(Tokens(0, 1), (step - 1) * BATCH, step * BATCH)
    inputs, labels = zip(*drawn, strict=True)
    tokens = torch.stack([given["input"] for given in inputs])
    with torch.no_grad():
        return torch.nn.functional.cross_entropy(model(tokens).logits.flatten(0, 1), torch.cat(labels)).item()


def test_a_checkpoint_is_an_attached_model_and_back(alone, tmp_path):
    """transformers' Llama with attnres.hf's connection goes on with torchtitan's loss, from trained weights."""
    target = tmp_path / "attached"
    checkpoint = str(alone[0] / "checkpoint/step-3")
    assert export_command([checkpoint, str(target), "--module", "tests.torchtitan", "--config", CONNECTION]) == 0
    model = load(target)
    assert loss_at(model, 4) == pytest.approx(alone[1][3][0], abs=1e-4)

    spec = configuration("llama3", CONNECTION.partition("_")[2]).model_spec
    adapter = spec.state_dict_adapter(spec.model, None)
    there = dict(model.state_dict())
    back = adapter.to_hf(adapter.from_hf(dict(there)))
    assert there.keys() == back.keys() and all(torch.equal(there[name], back[name]) for name in there)


def test_torchtitan_reads_a_mixture_of_experts_by_transformers_names():
    spec = configuration("qwen3-moe", "block").model_spec
    with torch.device("meta"):
        state = spec.model.build().state_dict()
    adapter = spec.state_dict_adapter(spec.model, None)
    there = adapter.to_hf(dict(state))
    assert there["model.layers.7.mlp.experts.63.down_proj.weight"].shape == (256, 16)
    back = adapter.from_hf(there)
    assert back.keys() == {name for name in state if not name.endswith("expert_bias_E")}
    assert all(back[name].shape == state[name].shape for name in back)


def test_torchtitan_starts_from_a_transformers_checkpoint(tmp_path):
    """An attached model: torchtitan's first loss is transformers' own, and it goes on from there."""
    torch.manual_seed(0)
    family = "qwen3"
    model = transformers_model(configuration(family, "block:block_size=5").model_spec.model)
    with torch.no_grad():
        for parameter in connection_of(model).parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    model.save_pretrained(tmp_path / "start")
    start = ("--checkpoint.enable", "--checkpoint.initial_load_in_hf", "--checkpoint.initial_load_path")
    options = (*start, str(tmp_path / "start"), "--training.local_batch_size", "2")
    log = train(tmp_path / "run", 2, *options, config=f"{family}_block:block_size=5")
    losses = [loss for loss, _ in steps(log)]
    assert losses[0] == pytest.approx(loss_at(model, 1), abs=1e-3)
    assert len(losses) == 3 and losses[-1] < losses[0]
