"""Under bfloat16 autocast, attention over depth rounds no more than the plain residual does."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from attnres import make_connection

LAYERS = 24


def error(model: nn.Module, x: Tensor) -> float:
    """Of the model under autocast, relative to itself in float64."""
    with torch.no_grad():
        exact = copy.deepcopy(model).double()(x.double())
        with torch.autocast("cpu", torch.bfloat16):
            given = model(x)
    return float((given.double() - exact).norm() / exact.norm())


class Stack(nn.Module):
    """Pre-norm sublayers whose outputs autocast makes bfloat16, while the stream is float32."""

    def __init__(self, rule: str, dim: int = 64) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.sublayers = nn.ModuleList(
            nn.Sequential(nn.RMSNorm(dim, 1e-6), nn.Linear(dim, dim), nn.Tanh(), nn.Linear(dim, dim))
            for _ in range(2 * LAYERS)
        )
        self.connection = make_connection(rule, dim, 2 * LAYERS)

    def forward(self, x: Tensor) -> Tensor:
        return self.connection.readout(self.connection.run(self.connection.start(x), self.sublayers))


@pytest.mark.parametrize(
    ("rule", "one_by_one"), [("block:block_size=8", True), ("block:block_size=8,total=true", False)]
)
def test_a_stack(rule, one_by_one, monkeypatch):
    """One by one: without the fused operator, as a layer of an attached model ends."""
    x = torch.randn(4, 16, 64)
    plain, attended = Stack("residual"), Stack(rule)
    if one_by_one:
        run = attended.connection.run

        def each(values, sublayers, first=0):
            for site, sublayer in enumerate(sublayers, first):
                values = run(values, [sublayer], site)
            return values

        monkeypatch.setattr(attended.connection, "run", each)
    assert error(attended, x) <= 1.05 * error(plain, x)
