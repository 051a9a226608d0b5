"""Candidates for a rule of our own, eleventh part: the plain residual between mixtures that lie further apart.

    attnres ablate residual block recipes/rules/period.py:Period:period=4 --data.dataset stdlib

Found in the search of docs/VERDICT.md, whose runs name the other files here: those stay as they were.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from attnres.connections._connection import Connection, Values, Weights, inverse_rms, stream_dtype
from attnres.ops import depth_weights


class Period(Connection):
    """h = sum_n p_n b_n + l v_0 before every `period`-th sublayer and at the readout; between them h <- h + c y.

    b_0 = v_0 and b_n the sum of block n's N(y), the open one's too; p as in Block. l = 0 and c = 1 at the start, one
    number per mixture and per sublayer, each its start and `keen` times what is learned.
    scaled=False: c is 1.
    """

    def __init__(
        self,
        dim: int,
        sites: int,
        block_size: int = 8,
        period: int = 2,
        keen: float = 4.0,
        scaled: bool = True,
        eps: float = 1e-6,
    ) -> None:
        super().__init__(dim, sites)
        self.block_size, self.period, self.keen, self.eps = block_size, period, keen, eps
        mixes = [self._mixes(site) for site in range(sites + 1)]
        self.query = nn.ParameterList(torch.zeros(dim) if mixing else None for mixing in mixes)
        self.gain = nn.ParameterList(torch.ones(dim) if mixing else None for mixing in mixes)
        self.feed = nn.ParameterList(torch.zeros(1) if mixing else None for mixing in mixes)
        self.scale = nn.ParameterList(torch.zeros(1) if scaled and not mixing else None for mixing in mixes[1:])

    def _mixes(self, site: int) -> bool:
        return site % self.period == 0 or site == self.sites

    def value_count(self, site: int) -> int:
        return 1 + -(-site // self.block_size) + (not self._mixes(site))

    def start(self, x: Tensor) -> Values:
        return (x,)

    def weigh(self, values: Values, site: int) -> Weights:
        if not self._mixes(site):
            return ()
        feed = self.keen * self.feed[site]
        return depth_weights(values, self.query[site], self.gain[site], self.eps), feed

    def gather(self, values: Values, weights: Weights, site: int) -> Tensor:
        if not weights:
            return values[-1]
        shares, feed = weights
        return sum((p * v for p, v in zip(shares, values, strict=True)), feed * values[0]).to(values[0].dtype)

    def weigh_output(self, values: Values, weights: Weights, site: int, y: Tensor) -> Weights:
        scale = self.scale[site]
        return inverse_rms(y, self.eps), 1.0 if scale is None else 1 + self.keen * scale

    def scatter(self, values: Values, weights: Weights, site: int, h: Tensor, y: Tensor) -> Values:
        (normalising, scale), dtype = weights, stream_dtype(values[0], y)
        new = normalising * y
        sources = values if self._mixes(site) else values[:-1]
        if site % self.block_size == 0:
            sources = (*sources, new.to(dtype))
        else:
            sources = (*sources[:-1], (sources[-1] + new).to(dtype))
        return sources if self._mixes(site + 1) else (*sources, (h + scale * y).to(dtype))
