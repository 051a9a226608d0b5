"""Muon on stacks is torch's Muon."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from attnres.ops import newton_schulz
from attnres.train import muon
from attnres.train.muon import StackedMuon

SHAPES = [(64, 64), (16, 64), (176, 64), (64, 64), (64, 176), (16, 64), (48, 128), (64, 64)]
OPTIONS = {"lr": 0.02, "momentum": 0.95, "weight_decay": 0.1, "adjust_lr_fn": "match_rms_adamw"}


def trained(kind: type[torch.optim.Muon], steps: int = 4) -> list[Tensor]:
    torch.manual_seed(0)
    parameters = [torch.randn(shape).requires_grad_() for shape in SHAPES]
    optimizer = kind(parameters, **OPTIONS)
    for step in range(steps):
        for number, parameter in enumerate(parameters):
            parameter.grad = None if number == step else torch.randn_like(parameter) * 10.0 ** (number - 4)
        optimizer.step()
    return [*parameters, *(entry["momentum_buffer"] for entry in optimizer.state_dict()["state"].values())]


@pytest.mark.parametrize(
    "largest", [muon.LARGEST_STACK, 10_000, 1], ids=["one stack", "two at a time", "one at a time"]
)
def test_weights_and_momentum_are_torchs_bit_for_bit(largest, monkeypatch):
    monkeypatch.setattr(newton_schulz, "cpu_multiplies_bfloat16", lambda: True)
    monkeypatch.setattr(muon, "LARGEST_STACK", largest)
    for ours, theirs in zip(trained(StackedMuon), trained(torch.optim.Muon), strict=True):
        assert torch.equal(ours, theirs)


def test_a_gradient_of_nothing_leaves_numbers_finite():
    parameter = torch.ones(4, 8, requires_grad=True)
    optimizer = StackedMuon([parameter], **OPTIONS)
    parameter.grad = torch.zeros(4, 8)
    optimizer.step()
    torch.testing.assert_close(parameter.detach(), torch.full((4, 8), 1 - 0.02 * 0.1))
