"""Candidates for a rule of our own, fifth part: a number for every site and block of normalised outputs, no attention.

    attnres ablate residual recipes/rules/static.py:Static:block_size=2 --data.dataset stdlib

Found in the search of docs/VERDICT.md, whose runs name the other files here: those stay as they were.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from attnres.connections._connection import Connection, Values, Weights, inverse_rms, stream_dtype


class Static(Connection):
    """h = sum_n (1 + keen a_n) b_n over b_0 = v_0 and the sums b of blocks of N(y): every a is 0 at the start.

    DenseFormer's weights on RMS Block's sources. layers=True: an MLP reads h + N(y) of the attention before it.
    """

    def __init__(
        self, dim: int, sites: int, block_size: int = 4, keen: float = 1.0, layers: bool = False, eps: float = 1e-6
    ) -> None:
        super().__init__(dim, sites)
        self.block_size, self.keen, self.layers, self.eps = block_size, keen, layers, eps
        self.weight = nn.ParameterList(
            torch.zeros(self._sources(site) if self._mixes(site) else 0) for site in range(sites + 1)
        )

    def _sources(self, site: int) -> int:
        return 1 + -(-site // self.block_size)

    def _mixes(self, site: int) -> bool:
        return not self.layers or site % 2 == 0 or site == self.sites

    def value_count(self, site: int) -> int:
        return self._sources(site) + (not self._mixes(site))

    def start(self, x: Tensor) -> Values:
        return (x,)

    def weigh(self, values: Values, site: int) -> Weights:
        return tuple(1 + self.keen * self.weight[site]) if self._mixes(site) else ()

    def gather(self, values: Values, weights: Weights, site: int) -> Tensor:
        if not weights:
            return values[-1]
        return sum(w * v for w, v in zip(weights, values, strict=True)).to(values[0].dtype)

    def weigh_output(self, values: Values, weights: Weights, site: int, y: Tensor) -> Weights:
        return inverse_rms(y, self.eps)

    def scatter(self, values: Values, weights: Weights, site: int, h: Tensor, y: Tensor) -> Values:
        sources = self._sources(site)
        blocks, dtype = values[:sources], stream_dtype(values[0], y)
        if site % self.block_size:
            blocks = (*blocks[:-1], (blocks[-1] + weights * y).to(dtype))
        else:
            blocks = (*blocks, (weights * y).to(dtype))
        return blocks if self._mixes(site + 1) else (*blocks, (h + weights * y).to(dtype))
