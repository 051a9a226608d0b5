"""Candidates for a rule of our own, tenth part: inside a transformer layer the plain residual, between layers depth.

    attnres ablate residual block recipes/rules/inner.py:Inner:block_size=8 --data.dataset stdlib

Found in the search of docs/VERDICT.md, whose runs name the other files here: those stay as they were.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from attnres.connections._connection import Connection, Values, Weights, inverse_rms, stream_dtype
from attnres.ops import depth_weights


class Inner(Connection):
    """FedLayer, whose MLPs read h + y of attention as it is: only what the blocks take up is normalised.

    whole: a block takes up N(y + y') of a transformer layer's two outputs, and not N(y) + N(y').
    """

    def __init__(
        self, dim: int, sites: int, block_size: int = 8, whole: bool = False, keen: float = 4.0, eps: float = 1e-6
    ) -> None:
        super().__init__(dim, sites)
        self.block_size, self.whole, self.keen, self.eps = block_size, whole, keen, eps
        mixes = len([site for site in range(sites + 1) if self._mixes(site)])
        self.query = nn.ParameterList(torch.zeros(dim) for _ in range(mixes))
        self.gain = nn.ParameterList(torch.ones(dim) for _ in range(mixes))
        self.feed = nn.ParameterList(torch.zeros(1) for _ in range(mixes))

    def _mixes(self, site: int) -> bool:
        return site % 2 == 0 or site == self.sites

    def value_count(self, site: int) -> int:
        """Before an MLP the output of attention, too, and what the MLP reads."""
        inside = not self._mixes(site)
        return 1 + -(-(site - (inside and self.whole)) // self.block_size) + inside * (1 + self.whole)

    def start(self, x: Tensor) -> Values:
        return (x,)

    def weigh(self, values: Values, site: int) -> Weights:
        if not self._mixes(site):
            return ()
        of_mix = (site + 1) // 2
        feed = self.keen * self.feed[of_mix]
        return depth_weights(values, self.query[of_mix], self.gain[of_mix], self.eps), feed

    def gather(self, values: Values, weights: Weights, site: int) -> Tensor:
        if not weights:
            return values[-1]
        shares, feed = weights
        return sum((p * v for p, v in zip(shares, values, strict=True)), feed * values[0]).to(values[0].dtype)

    def weigh_output(self, values: Values, weights: Weights, site: int, y: Tensor) -> Weights:
        if not self.whole:
            return inverse_rms(y, self.eps)
        if not self._mixes(site + 1):
            return ()
        return inverse_rms(y if self._mixes(site) else values[-2] + y, self.eps)

    def scatter(self, values: Values, weights: Weights, site: int, h: Tensor, y: Tensor) -> Values:
        dtype = stream_dtype(values[0], y)
        if self.whole:
            if not self._mixes(site + 1):
                return (*values, y.to(dtype), (h + y).to(dtype))
            new = weights * (y if self._mixes(site) else values[-2] + y)
            sources = values if self._mixes(site) else values[:-2]
            opens = (site - site % 2) % self.block_size == 0
        else:
            new = weights * y
            sources = values if self._mixes(site) else values[:-1]
            opens = site % self.block_size == 0
        sources = (*sources, new.to(dtype)) if opens else (*sources[:-1], (sources[-1] + new).to(dtype))
        return sources if self._mixes(site + 1) else (*sources, (h + y).to(dtype))
