"""Muon on stacks is torch's Muon."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from attnres.ops import newton_schulz
from attnres.train import muon
from attnres.train.muon import StackedMuon

SHAPES = [(24, 24), (8, 24), (40, 24), (24, 24), (24, 40), (8, 24)]
OPTIONS = {"lr": 0.02, "momentum": 0.95, "weight_decay": 0.1, "adjust_lr_fn": "match_rms_adamw"}


def trained(kind: type[torch.optim.Muon], steps: int = 3) -> tuple[list[Tensor], list[Tensor]]:
    """Weights and momentum behind some steps, in each of which another matrix has no gradient."""
    torch.manual_seed(0)
    parameters = [torch.randn(shape).requires_grad_() for shape in SHAPES]
    optimizer = kind(parameters, **OPTIONS)
    for step in range(steps):
        for number, parameter in enumerate(parameters):
            parameter.grad = None if number == step else torch.randn_like(parameter) * 10.0 ** (number - 3)
        optimizer.step()
    return parameters, [entry["momentum_buffer"] for entry in optimizer.state_dict()["state"].values()]


@pytest.mark.parametrize("largest", [muon.LARGEST_STACK, 1_200], ids=["one stack", "two at a time"])
def test_weights_and_momentum_are_torchs(largest, monkeypatch):
    """Products in bfloat16, of which a step keeps two digits; a mistaken matrix or size moves it by all of itself."""
    monkeypatch.setattr(newton_schulz, "cpu_multiplies_bfloat16", lambda: True)
    monkeypatch.setattr(muon, "LARGEST_STACK", largest)
    (ours, our_momentum), (theirs, their_momentum) = trained(StackedMuon), trained(torch.optim.Muon)
    torch.testing.assert_close(our_momentum, their_momentum, rtol=1e-5, atol=1e-7)
    for w, v in zip(ours, theirs, strict=True):
        step = 0.02 * 0.2 * max(w.shape) ** 0.5 / min(w.shape) ** 0.5  # about how far an element moves
        assert (w - v).abs().max() < 0.2 * step


def test_a_gradient_of_nothing_leaves_numbers_finite():
    parameter = torch.ones(4, 8, requires_grad=True)
    optimizer = StackedMuon([parameter], **OPTIONS)
    parameter.grad = torch.zeros(4, 8)
    optimizer.step()
    torch.testing.assert_close(parameter.detach(), torch.full((4, 8), 1 - 0.02 * 0.1))
