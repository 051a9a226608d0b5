"""ReZero: every sublayer starts switched off."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from attnres.connections.base import Connection, Values, Weights, widen


class ReZero(Connection):
    """h = x;  x <- x + alpha_l y,  alpha_l = 0 at the start.  Sublayers have no norm of their own.

    Source: Bachlechner et al. 2020 (2003.04887).
    """

    pre_norm = False

    def __init__(self, dim: int, sublayers: int) -> None:
        super().__init__(dim, sublayers)
        self.alpha = nn.ParameterList(torch.zeros(1) for _ in range(sublayers))

    def weigh(self, values: Values, site: int) -> Weights:
        return widen(self.alpha[site]) if site < self.sublayers else ()

    def gather(self, values: Values, weights: Weights, site: int) -> Tensor:
        return values[0]

    def scatter(self, values: Values, weights: Weights, site: int, h: Tensor, y: Tensor) -> Values:
        return ((values[0] + weights * y).to(values[0].dtype),)
