"""Candidates for a rule of our own, eighth part: how an MLP reads the attention before it, beside the mixture.

    attnres ablate residual block recipes/rules/fresh.py:Fresh:fresh=0.25 --data.dataset stdlib

Found in the search of docs/VERDICT.md, whose runs name the other files here: those stay as they were.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from attnres.connections._connection import Connection, Values, Weights, inverse_rms, stream_dtype
from attnres.ops import depth_weights


class Fresh(Connection):
    """FedLayer, whose MLPs read h + c N(y) of attention, or h + c y where `raw`: c = `fresh` at the start.

    c is one number per MLP, its start and `keen` times what is learned. fresh=null: c is the share of the block that
    attention writes to, and before the first output of a block that of a source of zeros.
    """

    def __init__(
        self,
        dim: int,
        sites: int,
        block_size: int = 8,
        start: float = 0.0,
        keen: float = 4.0,
        fresh: float = 1.0,
        same: bool = False,
        raw: bool = False,
        eps: float = 1e-6,
    ) -> None:
        super().__init__(dim, sites)
        self.block_size, self.first, self.keen, self.fresh = block_size, start, keen, fresh
        self.same, self.raw, self.eps = same, raw, eps
        mixes = len([site for site in range(sites + 1) if self._mixes(site)])
        self.query = nn.ParameterList(torch.zeros(dim) for _ in range(mixes))
        self.gain = nn.ParameterList(torch.ones(dim) for _ in range(mixes))
        self.feed = nn.ParameterList(torch.zeros(1) for _ in range(mixes))
        self.scale = nn.ParameterList(torch.zeros(1) for _ in range(0 if same else sites // 2))

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
        if not self.same:
            return depth_weights(values, self.query[of_mix], self.gain[of_mix], self.eps), feed
        opens = site < self.sites and site % self.block_size == 0
        sources = (*values, torch.zeros_like(values[0])) if opens else values
        return depth_weights(sources, self.query[of_mix], self.gain[of_mix], self.eps), feed

    def gather(self, values: Values, weights: Weights, site: int) -> Tensor:
        if not weights:
            return values[-1]
        shares, feed = weights
        return sum((p * v for p, v in zip(shares, values, strict=False)), feed * values[0]).to(values[0].dtype)

    def weigh_output(self, values: Values, weights: Weights, site: int, y: Tensor) -> Weights:
        normalising = inverse_rms(y, self.eps)
        if not self._mixes(site) or self._mixes(site + 1):
            return normalising, None
        scale = weights[0][-1] if self.same else self.fresh + self.keen * self.scale[site // 2]
        return normalising, scale * (1 if self.raw else normalising)

    def scatter(self, values: Values, weights: Weights, site: int, h: Tensor, y: Tensor) -> Values:
        (normalising, scale), dtype = weights, stream_dtype(values[0], y)
        new = normalising * y
        sources = values if self._mixes(site) else values[:-1]
        if site % self.block_size == 0:
            sources = (*sources, new.to(dtype))
        else:
            sources = (*sources[:-1], (sources[-1] + new).to(dtype))
        return sources if scale is None else (*sources, (h + scale * y).to(dtype))
