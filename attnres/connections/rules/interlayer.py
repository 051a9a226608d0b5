"""Attention over depth between transformer layers, over normalised outputs; inside a layer the plain residual."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from attnres.connections.base import Connection, Mixture, Values, Weights, stream_dtype, widen
from attnres.connections.rules.rms_block import output_weight
from attnres.connections.two_phase import Reading, TwoPhase
from attnres.errors import check_count
from attnres.ops import add_normalised, depth_weights, read

SCALE = 4.0
"""How much further the optimizer moves l and c than a number of its own: what they have to reach is of order one."""


class Interlayer(TwoPhase):
    """h = sum_n p_n b_n + l v_0 before each transformer layer and at the readout; its MLP reads h + c y of attention.

    b_0 = v_0, and b_n is the sum of block n's N(y), N(y) = y / sqrt(mean(y^2) + eps), the open block's too;
    p = softmax_n(w . RMSNorm(b_n; g, eps)). l and c are one number per layer, SCALE times what is learned and l = 0,
    c = 1 at the start; so are w = 0 and g = 1. A transformer layer is two sublayers.
    For weights trained with the plain residual: gate=True has (1 - a_l) y + a_l N(y) for N(y), a_l = 0 at the start,
    and total=True scales p to one at the start, so that h is the sum of the blocks.
    Values: v_0 and the blocks; before an MLP also what it reads. Source: our own search, paper/report.md. Attention
    over depth before attention alone is also AH-AttnRes (Erichtml/ah_attn_res, 2026), without N, l and c.
    """

    per_layer = True

    def __init__(
        self,
        dim: int,
        sublayers: int,
        block_size: int = 8,
        eps: float = 1e-6,
        gate: bool = False,
        total: bool = False,
    ) -> None:
        super().__init__(dim, sublayers)
        check_count("block_size", block_size)
        self.block_size = block_size
        self.eps = eps
        self.total = total
        self._reads = [int(self._mixes(site)) for site in range(sublayers + 1)]
        # An MLP has none of its own; None keeps query[site] true.
        self.query = nn.ParameterList(torch.zeros(dim) if mixes else None for mixes in self._reads)
        self.gain = nn.ParameterList(torch.ones(dim) if mixes else None for mixes in self._reads)
        self.feed = nn.ParameterList(torch.zeros(1) if mixes else None for mixes in self._reads)
        self.inner = nn.ParameterList(None if mixes else torch.zeros(1) for mixes in self._reads[1:])
        self.gate = nn.ParameterList(torch.zeros(1) for _ in range(sublayers)) if gate else None

    def _mixes(self, site: int) -> bool:
        return site % 2 == 0 or site == self.sublayers

    def _count(self, site: int) -> int:
        """The embedding and the blocks that hold anything."""
        return 1 + -(-site // self.block_size)

    def value_count(self, site: int) -> int:
        return self._count(site) + (not self._mixes(site))

    def weigh(self, values: Values, site: int) -> Weights:
        if not self._mixes(site):
            return ()
        shares = depth_weights(values, self.query[site], self.gain[site], self.eps)
        return shares * len(values) if self.total else shares, self._learned(self.feed[site], values[0])

    def gather(self, values: Values, weights: Weights, site: int) -> Mixture:
        if not weights:
            return values[-1]
        shares, feed = weights
        h = feed * values[0]
        for p, source in zip(shares, values, strict=True):
            h = h + p * source
        return h.to(values[0].dtype)

    def weigh_output(self, values: Values, weights: Weights, site: int, y: Tensor) -> Weights:
        return output_weight(y, self.eps, None if self.gate is None else self.gate[site]), self._share_inside(site, y)

    def _share_inside(self, site: int, y: Tensor) -> Tensor | None:
        """c, by which an MLP reads the attention before it, if that is what comes behind the site."""
        return None if self._mixes(site + 1) else 1 + self._learned(self.inner[site], y)

    def _learned(self, number: Tensor, stream: Tensor) -> Tensor:
        return SCALE * number.to(torch.promote_types(widen(number).dtype, stream.dtype))

    def scatter(self, values: Values, weights: Weights, site: int, h: Tensor, y: Tensor) -> Values:
        finished, total = self._open(values, site)
        (normalising, inside), dtype = weights, stream_dtype(values[0], y)
        new = normalising * y
        sources = (*finished, (new if total is None else total + new).to(dtype))
        return sources if inside is None else (*sources, (h + inside * y).to(dtype))

    def absorb(self, values: Values, weights: Weights, site: int, h: Mixture, y: Tensor) -> Values:
        if self.gate is not None:
            return Connection.absorb(self, values, weights, site, h, y)
        assert isinstance(h, Tensor)
        finished, total = self._open(values, site)
        inside, dtype = self._share_inside(site, y), stream_dtype(values[0], y)
        sources = (*finished, add_normalised(y, total, self.eps, dtype=dtype))
        return sources if inside is None else (*sources, (h + inside * y).to(dtype))

    def _open(self, values: Values, site: int) -> tuple[Values, Tensor | None]:
        """The embedding and the finished blocks, and the open one if it holds anything."""
        sources, opens_block = values[: self._count(site)], site % self.block_size == 0
        return (sources, None) if opens_block else (sources[:-1], sources[-1])

    def _bank(self, values: Values, first: int) -> Values:
        return values[: 1 + first // self.block_size]

    def _visible(self, values: Values, site: int) -> Values:
        return values if self._mixes(site) else ()

    def _vectors(self, sites: range) -> tuple[list[Tensor], list[Tensor]]:
        mixing = list(filter(self._mixes, sites))
        return [self.query[site] for site in mixing], [self.gain[site] for site in mixing]

    def _read(self, values: Values, site: int, newest: Values, reading: Reading, *_: None) -> tuple[Values, Mixture]:
        if not reading.queries:
            return values, values[-1]
        scale, dtype = float(self._count(site)) if self.total else 1.0, widen(values[0]).dtype
        (mixed,) = read(newest, None, reading.queries, reading.gains, reading.prior, self.eps, dtype, scale=scale)[0]
        return values, (mixed + self._learned(self.feed[site], values[0]) * values[0]).to(values[0].dtype)
