"""Muse Spark's residual gate: every channel divides itself between the stream and the normalised output."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from attnres.connections.base import Connection, Values, Weights, inverse_rms, widen

LEAST_CARRY = 1e-3
"""What a^2 is at least, so that no channel forgets the stream whole."""


class MuseGate(Connection):
    """h = x;  x <- a_l * x + b_l * N(y),  b_l = sigmoid(g_l / T),  a_l = sqrt(max(1 - b_l^2, 1e-3)),  per channel.

    a^2 + b^2 = 1 keeps the magnitude of a sum of two that have nothing to do with each other. N(y) = y / sqrt(mean(y^2)
    + eps); T is the temperature. g_l = 0 at the start: b = 0.5, a = 0.87. M differs from channel to channel.
    norm=False has y for N(y), for sublayers that normalise their output themselves, as Muse Spark's do.
    Shapes: x, y [..., dim]; g_l, a_l, b_l [dim]. Values: x.
    Source: Muse Spark (Meta, 816B-A42B), `MuseSparkResidualGate` of transformers' muse_spark, which draws g.
    """

    def __init__(
        self, dim: int, sublayers: int, temperature: float = 0.3, norm: bool = True, eps: float = 1e-6
    ) -> None:
        super().__init__(dim, sublayers)
        self.temperature = temperature
        self.norm = norm
        self.eps = eps
        self.gate = nn.ParameterList(torch.zeros(dim) for _ in range(sublayers))

    def weigh(self, values: Values, site: int) -> Weights:
        return ()

    def gather(self, values: Values, weights: Weights, site: int) -> Tensor:
        return values[0]

    def weigh_output(self, values: Values, weights: Weights, site: int, y: Tensor) -> Weights:
        gate = self.gate[site]
        logit = gate.to(torch.promote_types(gate.dtype, widen(y).dtype)) / self.temperature
        write = torch.sigmoid(logit)
        # (1 - b)(1 + b), and not 1 - b^2, which loses the digits of a small a.
        carry = (torch.sigmoid(-logit) * (1 + write)).clamp(min=LEAST_CARRY).sqrt()
        return carry, write * inverse_rms(y, self.eps) if self.norm else write

    def scatter(self, values: Values, weights: Weights, site: int, h: Tensor, y: Tensor) -> Values:
        (x,), (carry, write) = values, weights
        return ((carry * x + write * y).to(x.dtype),)
