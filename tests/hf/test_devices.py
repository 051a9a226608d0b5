"""An attached model computes on every device what it does in float64 on the CPU."""

from __future__ import annotations

import copy

import pytest
import torch

import attnres.hf

transformers = pytest.importorskip("transformers")

DEVICES = [
    "cpu",
    pytest.param(
        "cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]
    ),
]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("rule", ["block", "full", "delta"])
def test_logits_gradients_and_decoded_tokens(rule, device):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=4,
        num_attention_heads=2,
        num_key_value_heads=1,
        vocab_size=97,
        pad_token_id=0,
    )
    exact = attnres.hf.attach(transformers.LlamaForCausalLM(config), rule).double()
    for name, parameter in exact.named_parameters():
        if "query" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    model = copy.deepcopy(exact).to(device, torch.float32)
    tokens = torch.randint(1, 97, (2, 24))
    wanted, given = exact(tokens, labels=tokens), model(tokens.to(device), labels=tokens.to(device))
    assert apart(given.logits, wanted.logits) < 1e-4
    wanted.loss.backward()
    given.loss.backward()
    for (name, ours), theirs in zip(model.named_parameters(), exact.parameters(), strict=True):
        if theirs.grad is not None and theirs.grad.norm() > 1e-6:
            assert ours.grad is not None and apart(ours.grad, theirs.grad) < 1e-3, name
    options = {"max_new_tokens": 12, "do_sample": False}
    decoded = model.generate(tokens[:, :6].to(device), **options)
    assert torch.equal(decoded.cpu(), exact.generate(tokens[:, :6], **options))


def apart(ours: torch.Tensor, exact: torch.Tensor) -> float:
    return float(((ours.double().cpu() - exact).norm() / exact.norm()).detach())
