"""Candidates for a rule of our own, seventh part: one mixture per transformer layer, the embedding fed in by itself.

    attnres ablate residual block recipes/rules/layer.py:FedLayer:block_size=8 --data.dataset stdlib

Found in the search of docs/VERDICT.md, whose runs name the other files here: those stay as they were.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from attnres.connections._connection import Connection, Values, Weights, inverse_rms, stream_dtype
from attnres.ops import depth_weights


class FedLayer(Connection):
    """Before a transformer layer and at the readout h = sum_n p_n b_n + l v_0; an MLP reads that h + N(y) of attention.

    b_0 = v_0 and b_n the sum of block n's N(y), the open one's too; p as in Block. l = `start` at the start, one number
    per mixture: its start and `keen` times what is learned.
    """

    def __init__(
        self, dim: int, sites: int, block_size: int = 8, start: float = 0.0, keen: float = 4.0, eps: float = 1e-6
    ) -> None:
        super().__init__(dim, sites)
        self.block_size, self.first, self.keen, self.eps = block_size, start, keen, eps
        mixes = len([site for site in range(sites + 1) if self._mixes(site)])
        self.query = nn.ParameterList(torch.zeros(dim) for _ in range(mixes))
        self.gain = nn.ParameterList(torch.ones(dim) for _ in range(mixes))
        self.feed = nn.ParameterList(torch.zeros(1) for _ in range(mixes))

    def _mixes(self, site: int) -> bool:
        return site % 2 == 0 or site == self.sites

    def value_count(self, site: int) -> int:
        return 1 + -(-site // self.block_size) + (not self._mixes(site))

    def start(self, x: Tensor) -> Values:
        return (x,)

    def weigh(self, values: Values, site: int) -> Weights:
        if not self._mixes(site):
            return ()
        of_mix = (site + 1) // 2
        feed = self.first + self.keen * self.feed[of_mix]
        return depth_weights(values, self.query[of_mix], self.gain[of_mix], self.eps), feed

    def gather(self, values: Values, weights: Weights, site: int) -> Tensor:
        if not weights:
            return values[-1]
        shares, feed = weights
        return sum((p * v for p, v in zip(shares, values, strict=True)), feed * values[0]).to(values[0].dtype)

    def weigh_output(self, values: Values, weights: Weights, site: int, y: Tensor) -> Weights:
        return inverse_rms(y, self.eps)

    def scatter(self, values: Values, weights: Weights, site: int, h: Tensor, y: Tensor) -> Values:
        new, dtype = weights * y, stream_dtype(values[0], y)
        sources = values if self._mixes(site) else values[:-1]
        if site % self.block_size == 0:
            sources = (*sources, new.to(dtype))
        else:
            sources = (*sources[:-1], (sources[-1] + new).to(dtype))
        return sources if self._mixes(site + 1) else (*sources, (h + new).to(dtype))
