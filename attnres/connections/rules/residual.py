"""The plain residual stream with pre-norm sublayers: the baseline."""

from __future__ import annotations

from torch import Tensor

from attnres.connections.base import Connection, Values, Weights


class Residual(Connection):
    """h = x;  x <- x + y.

    Every source enters every later site with weight one, so M is all ones on and below the diagonal.
    Sources: He et al. 2015 (1512.03385); pre-norm as in Xiong et al. 2020 (2002.04745).
    """

    def weigh(self, values: Values, site: int) -> Weights:
        return ()

    def gather(self, values: Values, weights: Weights, site: int) -> Tensor:
        return values[0]

    def scatter(self, values: Values, weights: Weights, site: int, h: Tensor, y: Tensor) -> Values:
        return (values[0] + y,)
