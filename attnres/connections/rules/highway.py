"""Highway networks: a learned gate per channel between carrying and transforming."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnres.connections.base import Connection, Values, Weights, widen


class Highway(Connection):
    """T = sigmoid(W_l x + b_l);  h = x;  x <- T * y + (1 - T) * x,  channel by channel.

    b_l = -2 and W_l = 0 at the start, so each site first carries 88% of the stream. M differs from channel to channel.
    Source: Srivastava et al. 2015 (1505.00387).
    """

    def __init__(self, dim: int, sublayers: int) -> None:
        super().__init__(dim, sublayers)
        self.gate = nn.ParameterList(torch.zeros(dim, dim) for _ in range(sublayers))
        self.gate_bias = nn.ParameterList(torch.full((dim,), -2.0) for _ in range(sublayers))

    def weigh(self, values: Values, site: int) -> Weights:
        if site == self.sublayers:
            return ()
        x = widen(values[0])
        return torch.sigmoid(F.linear(x, self.gate[site].to(x.dtype), self.gate_bias[site].to(x.dtype)))

    def gather(self, values: Values, weights: Weights, site: int) -> Tensor:
        return values[0]

    def scatter(self, values: Values, weights: Weights, site: int, h: Tensor, y: Tensor) -> Values:
        (x,) = values
        return ((weights * y + (1 - weights) * x).to(x.dtype),)
