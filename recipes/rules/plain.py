"""What of sized.py is the normalising and what is the size: the controls of the search.

attnres ablate residual recipes/rules/plain.py:Plain recipes/rules/sized.py:Sized:feed=false --data.dataset stdlib
"""

from __future__ import annotations

from torch import Tensor

from attnres.connections._connection import Connection, Values, Weights, stream_dtype
from attnres.connections.block import Block


class Plain(Connection):
    """h = x, x <- x + (size / sqrt(sites)) y: nothing is normalised and nothing is learned."""

    def __init__(self, dim: int, sites: int, size: float = 1.0) -> None:
        super().__init__(dim, sites)
        self.size = size / sites**0.5

    def start(self, x: Tensor) -> Values:
        return (x,)

    def weigh(self, values: Values, site: int) -> Weights:
        return ()

    def gather(self, values: Values, weights: Weights, site: int) -> Tensor:
        return values[0]

    def weigh_output(self, values: Values, weights: Weights, site: int, y: Tensor) -> Weights:
        return self.size

    def scatter(self, values: Values, weights: Weights, site: int, h: Tensor, y: Tensor) -> Values:
        return ((h + weights * y).to(stream_dtype(h, y)),)


class PlainBlock(Block):
    """Block whose sums are (size / sqrt(sites)) sum_{i in block} y_i."""

    def __init__(self, dim: int, sites: int, block_size: int = 4, size: float = 1.0) -> None:
        super().__init__(dim, sites, block_size=block_size)
        self.size = size / sites**0.5

    def scatter(self, values: Values, weights: Weights, site: int, h: Tensor, y: Tensor) -> Values:
        return super().scatter(values, weights, site, h, self.size * y)

    def absorb(self, values: Values, weights: Weights, site: int, h: Tensor, y: Tensor) -> Values:
        return self.scatter(values, weights, site, h, y)
