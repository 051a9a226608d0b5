"""Attention over depth added to the residual stream instead of replacing it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from attnres.connections._connection import Connection, Values, Weights
from attnres.ops import depth_weights


class Delta(Connection):
    """h = x + sum_i p_i s_i over the sublayer outputs s so far;  x <- x + y;  the readout is x.

    p = softmax_i(w_l . RMSNorm(s_i; g_l, eps)) as in AttnRes; the first site reads h = x. w_l = 0 at the start.
    Values: x, then the sublayer outputs. Source: 2605.18855.
    """

    def __init__(self, dim: int, sites: int, eps: float = 1e-6) -> None:
        super().__init__(dim, sites)
        self.eps = eps
        # Site 0 has nothing to attend to; None keeps query[site] true.
        self.query = nn.ParameterList([None, *(torch.zeros(dim) for _ in range(1, sites))])
        self.gain = nn.ParameterList([None, *(torch.ones(dim) for _ in range(1, sites))])

    def weigh(self, values: Values, site: int) -> Weights:
        if site in (0, self.sites):
            return ()
        return depth_weights(values[1:], self.query[site], self.gain[site], self.eps)

    def gather(self, values: Values, weights: Weights, site: int) -> Tensor:
        x, *outputs = values
        if site in (0, self.sites):
            return x
        h = x
        for weight, output in zip(weights, outputs, strict=True):
            h = h + weight * output
        return h.to(x.dtype)

    def scatter(self, values: Values, weights: Weights, site: int, h: Tensor, y: Tensor) -> Values:
        x, *outputs = values
        return (x + y, *outputs, y)
