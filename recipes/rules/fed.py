"""Candidates for a rule of our own, third part: attention over depth where the embedding is fed in by itself, too.

    attnres ablate residual recipes/rules/fed.py:FedBlock:block_size=12 --data.dataset stdlib

Found in the search of docs/VERDICT.md, whose runs name candidates.py and streams.py: those stay as they were.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from attnres.connections._connection import Connection, Mixture, Values, Weights, inverse_rms, stream_dtype
from attnres.connections.rms_block import RMSBlock
from attnres.ops import depth_weights


class FedBlock(RMSBlock):
    """RMS Block with h = sum_i p_i b_i + l v_0 and b = sum_{i in block} a_i N(y_i): l = 0 and a = 1 at the start.

    l is one number per site, a one per sublayer; both are their start and `keen` times what is learned.
    """

    def __init__(self, dim: int, sites: int, block_size: int = 4, keen: float = 1.0) -> None:
        super().__init__(dim, sites, block_size=block_size)
        self.keen = keen
        self.feed = nn.ParameterList(torch.zeros(1) for _ in range(sites + 1))
        self.size = nn.ParameterList(torch.zeros(1) for _ in range(sites))
        self._fused = False

    def weigh(self, values: Values, site: int) -> Weights:
        return super().weigh(values, site), self.keen * self.feed[site]

    def gather(self, values: Values, weights: Weights, site: int) -> Mixture:
        shares, feed = weights
        return (super().gather(values, shares, site) + feed * values[0]).to(values[0].dtype)

    def weigh_output(self, values: Values, weights: Weights, site: int, y: Tensor) -> Weights:
        return (1 + self.keen * self.size[site]) * inverse_rms(y, self.eps)

    def absorb(self, values: Values, weights: Weights, site: int, h: Mixture, y: Tensor) -> Values:
        return Connection.absorb(self, values, weights, site, h, y)


class FedDelta(Connection):
    """Before each transformer layer x <- l0 x + l1 v_0;  h = x + c sum_i p_i b_i;  x <- x + a N(y).

    b are the sums of N(y) over blocks so far, the open one's included, p as in Block. l0 = 1, l1 = 0, c = 0 and a = 1
    at the start, each its start and `keen` times what is learned.
    """

    def __init__(self, dim: int, sites: int, block_size: int = 4, keen: float = 1.0, eps: float = 1e-6) -> None:
        super().__init__(dim, sites)
        self.block_size, self.keen, self.eps = block_size, keen, eps
        self.lam = nn.ParameterList(torch.zeros(2) for _ in range(0, sites, 2))
        self.size = nn.ParameterList(torch.zeros(1) for _ in range(sites))
        self.gate = nn.ParameterList(torch.zeros(1) for _ in range(1, sites + 1))
        self.query = nn.ParameterList(torch.zeros(dim) for _ in range(1, sites + 1))
        self.gain = nn.ParameterList(torch.ones(dim) for _ in range(1, sites + 1))

    def start(self, x: Tensor) -> Values:
        return (x, x)

    def weigh(self, values: Values, site: int) -> Weights:
        lam = self.keen * self.lam[site // 2] if site % 2 == 0 and site < self.sites else None
        stream = None if lam is None else (1 + lam[0], lam[1])
        if site == 0:
            return stream, None
        shares = depth_weights(values[2:], self.query[site - 1], self.gain[site - 1], self.eps)
        return stream, self.keen * self.gate[site - 1] * shares

    def _stream(self, values: Values, stream: Weights) -> Tensor:
        return values[0] if stream is None else stream[0] * values[0] + stream[1] * values[1]

    def gather(self, values: Values, weights: Weights, site: int) -> Tensor:
        stream, shares = weights
        h = self._stream(values, stream)
        for share, block in zip([] if shares is None else shares, values[2:], strict=True):
            h = h + share * block
        return h.to(values[0].dtype)

    def weigh_output(self, values: Values, weights: Weights, site: int, y: Tensor) -> Weights:
        return weights[0], 1 + self.keen * self.size[site], inverse_rms(y, self.eps)

    def scatter(self, values: Values, weights: Weights, site: int, h: Tensor, y: Tensor) -> Values:
        stream, size, unit = weights
        x, dtype, finished = self._stream(values, stream), stream_dtype(values[0], y), 2 + site // self.block_size
        opened = values[finished] + unit * y if site % self.block_size else unit * y
        return ((x + size * unit * y).to(dtype), values[1], *values[2:finished], opened.to(dtype))
