"""Candidates for a rule of our own, sixth part: a stream that is read anew by attention over depth once per block.

    attnres ablate residual recipes/rules/spaced.py:Spaced:block_size=8 --data.dataset stdlib

Found in the search of docs/VERDICT.md, whose runs name the other files here: those stay as they were.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from attnres.connections._connection import Connection, Values, Weights, inverse_rms, stream_dtype
from attnres.ops import depth_weights


class Spaced(Connection):
    """h <- sum_n |n| p_n b_n where a block begins and at the readout, elsewhere h <- h + (size / sqrt(sites)) N(y).

    b_0 = v_0, b_n the sum of what block n added, |n| how many there are and p as in Block: so it starts as the stream
    v_0 + (size / sqrt(sites)) sum_i N(y_i). normed=False: y in place of N(y).
    """

    def __init__(
        self,
        dim: int,
        sites: int,
        block_size: int = 4,
        size: float = 1.0,
        gain: float = 1.0,
        normed: bool = True,
        eps: float = 1e-6,
    ) -> None:
        super().__init__(dim, sites)
        self.block_size, self.size, self.normed, self.eps = block_size, size / sites**0.5, normed, eps
        mixes = len([site for site in range(1, sites + 1) if self._mixes(site)])
        self.query = nn.ParameterList(torch.zeros(dim) for _ in range(mixes))
        self.gain = nn.ParameterList(torch.full((dim,), gain) for _ in range(mixes))

    def _mixes(self, site: int) -> bool:
        return site > 0 and (site % self.block_size == 0 or site == self.sites)

    def value_count(self, site: int) -> int:
        return 1 + -(-site // self.block_size) + (not self._mixes(site) and site > 0)

    def start(self, x: Tensor) -> Values:
        return (x,)

    def weigh(self, values: Values, site: int) -> Weights:
        if not self._mixes(site):
            return ()
        of_mix = -(-site // self.block_size) - 1
        return len(values) * depth_weights(values, self.query[of_mix], self.gain[of_mix], self.eps)

    def gather(self, values: Values, weights: Weights, site: int) -> Tensor:
        if not len(weights):
            return values[-1]
        return sum(w * v for w, v in zip(weights, values, strict=True)).to(values[0].dtype)

    def weigh_output(self, values: Values, weights: Weights, site: int, y: Tensor) -> Weights:
        return self.size * inverse_rms(y, self.eps) if self.normed else self.size

    def scatter(self, values: Values, weights: Weights, site: int, h: Tensor, y: Tensor) -> Values:
        new, dtype = weights * y, stream_dtype(values[0], y)
        if site % self.block_size == 0:
            blocks = (*values, new.to(dtype))
        else:
            blocks = (*values[:-2], (values[-2] + new).to(dtype))
        return blocks if self._mixes(site + 1) else (*blocks, (h + new).to(dtype))
