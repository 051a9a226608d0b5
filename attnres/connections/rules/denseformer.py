"""DenseFormer: a learned, fixed average over the outputs of all earlier transformer layers."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from attnres.connections.base import Connection, Values, Weights, apart


class DenseFormer(Connection):
    """X_0 = Y_0 = v_0;  X_{i+1} = layer_i(Y_i);  Y_{i+1} = sum_{j <= i+1} a_{i,j} X_j.

    The history X holds the layers' outputs before averaging. a_i in R^{i+2} is one-hot on the last entry at the start,
    which is the plain residual. Values: X_0 .. X_i, and behind them the stream of the layer that is still open.
    Source: Pagliardini et al. 2024 (2402.02622), with dilation and period 1.
    """

    per_layer = True

    def __init__(self, dim: int, sublayers: int) -> None:
        super().__init__(dim, sublayers)
        self.average = nn.ParameterList(
            torch.cat([torch.zeros(layer + 1), torch.ones(1)]) for layer in range(sublayers // 2)
        )

    def value_count(self, site: int) -> int:
        return 1 + (site + 1) // 2

    def weigh(self, values: Values, site: int) -> Weights:
        return apart(self.average[site // 2 - 1]) if site % 2 == 0 and site > 0 else ()

    def gather(self, values: Values, weights: Weights, site: int) -> Tensor:
        if not weights:
            return values[-1]
        h = weights[0] * values[0]
        for weight, value in zip(weights[1:], values[1:], strict=True):
            h = h + weight * value
        return h.to(values[0].dtype)

    def scatter(self, values: Values, weights: Weights, site: int, h: Tensor, y: Tensor) -> Values:
        opens_layer = site % 2 == 0
        return (*(values if opens_layer else values[:-1]), h + y)
