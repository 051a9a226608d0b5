"""Attention over depth added to the residual stream instead of replacing it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from attnres.connections._connection import Connection, Values, Weights, positive, widen
from attnres.ops import attend, depth_weights


class Delta(Connection):
    """h = x + sum_i p_i b_i over the sums b of the blocks of sublayer outputs so far;  x <- x + y;  the readout is x.

    Blocks have `block_size` sublayers, the open one's partial sum included; with block_size=1 (the start) they are the
    outputs themselves, and block_size=4 or so is the authors' Delta Block. p = softmax_i(w_l . RMSNorm(b_i; g_l, eps))
    as in AttnRes; the first site reads h = x. w_l = 0 at the start.
    Values: x, then the block sums. Source: Delta Attention Residuals (2605.18855). The published code also has the
    embedding among the sources, and of blocks only the finished ones.
    """

    def __init__(self, dim: int, sites: int, block_size: int = 1, eps: float = 1e-6) -> None:
        super().__init__(dim, sites)
        positive("block_size", block_size)
        self.block_size = block_size
        self.eps = eps
        # Site 0 has nothing to attend to; None keeps query[site] true.
        self.query = nn.ParameterList([None, *(torch.zeros(dim) for _ in range(1, sites))])
        self.gain = nn.ParameterList([None, *(torch.ones(dim) for _ in range(1, sites))])

    def _reads_stream(self, site: int) -> bool:
        return site in (0, self.sites)

    def weigh(self, values: Values, site: int) -> Weights:
        if self._reads_stream(site):
            return ()
        return depth_weights(values[1:], self.query[site], self.gain[site], self.eps)

    def gather(self, values: Values, weights: Weights, site: int) -> Tensor:
        x, *blocks = values
        if self._reads_stream(site):
            return x
        h = x
        for weight, block in zip(weights, blocks, strict=True):
            h = h + weight * block
        return h.to(x.dtype)

    def mix(self, values: Values, site: int) -> tuple[Weights, Tensor]:
        x, *blocks = values
        if self._reads_stream(site):
            return (), x
        outs, _ = attend(blocks, [self.query[site]], [self.gain[site]], (), self.eps, widen(x).dtype)
        return (), (x + outs[0]).to(x.dtype)

    def scatter(self, values: Values, weights: Weights, site: int, h: Tensor, y: Tensor) -> Values:
        x, *blocks = values
        opens_block = site % self.block_size == 0
        return (x + y, *blocks, y) if opens_block else (x + y, *blocks[:-1], blocks[-1] + y)
