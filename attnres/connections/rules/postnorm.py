"""The original transformer's residual: normalise after the sum."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from attnres.connections.base import Connection, Values, Weights, inverse_rms


class PostNorm(Connection):
    """h = RMSNorm(x; g_l);  x <- h + y.  Sublayers have no norm of their own.

    Read across sites this is x_{l+1} = Norm(x_l + y_l). The norm's gain and 1/rms are the weights, one per channel.
    Source: Vaswani et al. 2017 (1706.03762), with RMSNorm for LayerNorm.
    """

    pre_norm = False

    def __init__(self, dim: int, sublayers: int, eps: float = 1e-6) -> None:
        super().__init__(dim, sublayers)
        self.eps = eps
        self.gain = nn.ParameterList(torch.ones(dim) for _ in range(sublayers + 1))

    def weigh(self, values: Values, site: int) -> Weights:
        return inverse_rms(values[0], self.eps) * self.gain[site]

    def gather(self, values: Values, weights: Weights, site: int) -> Tensor:
        return (weights * values[0]).to(values[0].dtype)

    def scatter(self, values: Values, weights: Weights, site: int, h: Tensor, y: Tensor) -> Values:
        return (h + y,)
