"""An attached model computes on every device what it does in float64 on the CPU."""

from __future__ import annotations

import copy

import pytest
import torch

import attnres.hf
from tests.depth import randomise
from tests.hf.models import generate, make_model, make_tokens

NO_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
CASES = [
    ("block", "cpu"),
    *(pytest.param(rule, "cuda", marks=[pytest.mark.gpu, NO_GPU]) for rule in ("block", "full", "delta")),
]


@pytest.mark.parametrize(("rule", "device"), CASES)
def test_logits_gradients_and_decoded_tokens(rule, device):
    exact = attnres.hf.attach(make_model("llama"), rule).double()
    randomise(attnres.hf.connection_of(exact))
    model, tokens = copy.deepcopy(exact).to(device, torch.float32), make_tokens(2, 24)
    wanted, given = exact(tokens, labels=tokens), model(tokens.to(device), labels=tokens.to(device))
    assert apart(given.logits, wanted.logits) < 1e-3
    wanted.loss.backward()
    given.loss.backward()
    for (name, ours), theirs in zip(model.named_parameters(), exact.parameters(), strict=True):
        if theirs.grad is not None and theirs.grad.norm() > 1e-6:
            assert ours.grad is not None and apart(ours.grad, theirs.grad) < 1e-3, name
    made = generate(model, tokens[:, :6].to(device), count=12)
    whole = exact(made.sequences.cpu()).logits[:, 5:-1]
    assert apart(torch.stack(made.logits, 1), whole) < 1e-3


def apart(ours: torch.Tensor, exact: torch.Tensor) -> float:
    return float(((ours.double().cpu() - exact).norm() / exact.norm()).detach())
