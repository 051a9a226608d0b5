"""Candidates for a rule of our own, ninth part: every sublayer reads the output before it, beside the mixture.

    attnres ablate residual block recipes/rules/newest.py:Newest:block_size=4 --data.dataset stdlib

Found in the search of docs/VERDICT.md, whose runs name the other files here: those stay as they were.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from attnres.connections._connection import Connection, Values, Weights, inverse_rms, stream_dtype
from attnres.ops import depth_weights


class Newest(Connection):
    """FedLayer whose attention, and readout, reads h + c N(y) of the MLP before it, too: c = `after` at the start.

    c is one number per mixture, its start and `keen` times what is learned; MLPs read h + N(y) of attention.
    """

    def __init__(
        self, dim: int, sites: int, block_size: int = 8, after: float = 1.0, keen: float = 4.0, eps: float = 1e-6
    ) -> None:
        super().__init__(dim, sites)
        self.block_size, self.after, self.keen, self.eps = block_size, after, keen, eps
        mixes = len([site for site in range(sites + 1) if self._mixes(site)])
        self.query = nn.ParameterList(torch.zeros(dim) for _ in range(mixes))
        self.gain = nn.ParameterList(torch.ones(dim) for _ in range(mixes))
        self.feed = nn.ParameterList(torch.zeros(1) for _ in range(mixes))
        self.scale = nn.ParameterList(torch.zeros(1) for _ in range(mixes - 1))

    def _mixes(self, site: int) -> bool:
        return site % 2 == 0 or site == self.sites

    def value_count(self, site: int) -> int:
        return 1 + -(-site // self.block_size) + (site > 0)

    def start(self, x: Tensor) -> Values:
        return (x,)

    def weigh(self, values: Values, site: int) -> Weights:
        if not self._mixes(site):
            return ()
        of_mix = (site + 1) // 2
        sources = values[:-1] if site else values
        shares = depth_weights(sources, self.query[of_mix], self.gain[of_mix], self.eps)
        fresh = self.after + self.keen * self.scale[of_mix - 1] if site else 0.0
        return shares, self.keen * self.feed[of_mix], fresh

    def gather(self, values: Values, weights: Weights, site: int) -> Tensor:
        if not weights:
            return values[-1]
        shares, feed, fresh = weights
        h = sum((p * v for p, v in zip(shares, values, strict=False)), feed * values[0])
        return (h + fresh * values[-1] if site else h).to(values[0].dtype)

    def weigh_output(self, values: Values, weights: Weights, site: int, y: Tensor) -> Weights:
        return inverse_rms(y, self.eps)

    def scatter(self, values: Values, weights: Weights, site: int, h: Tensor, y: Tensor) -> Values:
        new, dtype = weights * y, stream_dtype(values[0], y)
        sources = values[:-1] if site else values
        if site % self.block_size == 0:
            sources = (*sources, new.to(dtype))
        else:
            sources = (*sources[:-1], (sources[-1] + new).to(dtype))
        return (*sources, (new if self._mixes(site + 1) else h + new).to(dtype))
