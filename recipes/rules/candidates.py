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
