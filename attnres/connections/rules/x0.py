"""The embedding fed back in at every transformer layer: the control that every comparison needs."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from attnres.connections.base import Connection, Values, Weights, apart, refuse_no_stream


class X0(Connection):
    """Before each transformer layer i: x <- l0_i x + l1_i v_0;  then h = x and x <- x + y at both of its sublayers.

    l0 = 1 and l1 = 0 at the start. Two scalars per transformer layer, no dependence on the input: what AttnRes gains
    over this is more than fresh access to the embedding. Source: the modded-nanogpt and nanochat training scripts.
    """

    per_layer = True

    def __init__(self, dim: int, sublayers: int) -> None:
        super().__init__(dim, sublayers)
        self.lam = nn.ParameterList(torch.tensor([1.0, 0.0]) for _ in range(0, sublayers, 2))

    def start(self, x: Tensor) -> Values:
        refuse_no_stream(x)
        return (x, x)

    def weigh(self, values: Values, site: int) -> Weights:
        opens_layer = site % 2 == 0 and site < self.sublayers
        return apart(self.lam[site // 2]) if opens_layer else ()

    def gather(self, values: Values, weights: Weights, site: int) -> Tensor:
        x, v0 = values
        if not weights:
            return x
        keep, refresh = weights
        return (keep * x + refresh * v0).to(x.dtype)

    def scatter(self, values: Values, weights: Weights, site: int, h: Tensor, y: Tensor) -> Values:
        return (h + y, values[1])
