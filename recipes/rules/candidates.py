"""Candidates for a rule of our own: what the search of docs/VERDICT.md tries beside the rules that exist.

    attnres ablate residual rms-block recipes/rules/candidates.py:RMSScaled --data.dataset stdlib

None has a kernel: the one that wins the search gets one.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from attnres.connections._connection import Connection, Mixture, Values, Weights, inverse_rms, stream_dtype
from attnres.connections.delta import Delta
from attnres.connections.rms_block import RMSBlock
from attnres.connections.x0 import X0


class RMSScaled(RMSBlock):
    """RMS Block with a learned size of every output: b = sum_{i in block} a_i N(y_i), a_i = 1 at the start.

    A scale of its own for every channel would say no more: the sublayer's last matrix has the channels' ratios already.
    """

    def __init__(self, dim: int, sites: int, block_size: int = 4) -> None:
        super().__init__(dim, sites, block_size=block_size)
        self.size = nn.ParameterList(torch.ones(1) for _ in range(sites))

    def weigh_output(self, values: Values, weights: Weights, site: int, y: Tensor) -> Weights:
        return self.size[site] * inverse_rms(y, self.eps)

    def absorb(self, values: Values, weights: Weights, site: int, h: Mixture, y: Tensor) -> Values:
        return Connection.absorb(self, values, weights, site, h, y)


class RMSBias(RMSBlock):
    """RMS Block with a learned number for every site and source, 0 at the start, beside the score of the key."""

    def __init__(self, dim: int, sites: int, block_size: int = 4) -> None:
        super().__init__(dim, sites, block_size=block_size)
        self.bias = nn.ParameterList(torch.zeros(self._count(site)) for site in range(sites + 1))
        self._fused = False

    def _scores(self, sources: Values, site: int, read: int) -> Tensor:
        scores = super()._scores(sources, site, read)  # [sources, ..., 1]
        return scores + self.bias[site].reshape(-1, *[1] * (scores.ndim - 1))


class RMSDelta(Delta):
    """Delta Block on normalised outputs: h = x + sum_i p_i b_i,  x <- x + N(y),  b = sum_{i in block} N(y_i)."""

    def __init__(self, dim: int, sites: int, block_size: int = 4) -> None:
        super().__init__(dim, sites, block_size=block_size)

    def weigh_output(self, values: Values, weights: Weights, site: int, y: Tensor) -> Weights:
        return inverse_rms(y, self.eps)

    def scatter(self, values: Values, weights: Weights, site: int, h: Tensor, y: Tensor) -> Values:
        return super().scatter(values, (), site, h, (weights * y).to(stream_dtype(values[0], y)))


class RMSKeen(RMSBlock):
    """RMS Block whose gains begin at `gain` in place of 1: a step of a query moves its scores so many times further."""

    def __init__(self, dim: int, sites: int, block_size: int = 4, gain: float = 4.0) -> None:
        super().__init__(dim, sites, block_size=block_size)
        for of_site in self.gain:
            nn.init.constant_(of_site, gain)


class RMSLayer(RMSBlock):
    """RMS Block with one mixture per transformer layer: an MLP reads h + N(y) of the attention before it.

    Half as many sites attend. Values: those of `rms-block:pending=normalised`, then before an MLP what it reads.
    """

    def __init__(self, dim: int, sites: int, block_size: int = 4) -> None:
        super().__init__(dim, sites, block_size=block_size, pending="normalised")
        for site in range(1, sites, 2):  # the MLPs' queries would learn nothing
            self.query[site], self.gain[site] = nn.Parameter(torch.empty(0)), nn.Parameter(torch.empty(0))
        self._fused = False

    def value_count(self, site: int) -> int:
        return super().value_count(site) + self._is_mlp(site)

    def _is_mlp(self, site: int) -> bool:
        return site % 2 == 1 and site < self.sites

    def weigh(self, values: Values, site: int) -> Weights:
        return () if self._is_mlp(site) else super().weigh(values, site)

    def gather(self, values: Values, weights: Weights, site: int) -> Mixture:
        return values[-1] if self._is_mlp(site) else super().gather(values, weights, site)

    def scatter(self, values: Values, weights: Weights, site: int, h: Tensor, y: Tensor) -> Values:
        if self._is_mlp(site):
            return super().scatter(values[:-1], weights, site, h, y)
        after = super().scatter(values, weights, site, h, y)
        return (*after, (h + weights * y).to(h.dtype)) if self._is_mlp(site + 1) else after

    def absorb(self, values: Values, weights: Weights, site: int, h: Mixture, y: Tensor) -> Values:
        return Connection.absorb(self, values, weights, site, h, y)


class RMSStream(X0):
    """The stream of normalised outputs with learned sizes, and the embedding fed back in: no attention over depth.

    Before each transformer layer x <- l0 x + l1 v_0;  then h = x and x <- x + a N(y), a = 1 at the start.
    """

    def __init__(self, dim: int, sites: int, eps: float = 1e-6) -> None:
        super().__init__(dim, sites)
        self.eps = eps
        self.size = nn.ParameterList(torch.ones(1) for _ in range(sites))

    def weigh_output(self, values: Values, weights: Weights, site: int, y: Tensor) -> Weights:
        return self.size[site] * inverse_rms(y, self.eps)

    def scatter(self, values: Values, weights: Weights, site: int, h: Tensor, y: Tensor) -> Values:
        return ((h + weights * y).to(h.dtype), values[1])
