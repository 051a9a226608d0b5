"""The residual stream of normalised outputs, scaled to stay of one magnitude: a control without parameters."""

from __future__ import annotations

import torch
from torch import Tensor

from attnres.connections.base import Connection, Values, Weights, inverse_rms, widen


class DepthScaled(Connection):
    """h = x;  x <- sqrt((k - 1) / k) x + N(y) / sqrt(k) at the k-th term, the embedding being the first: k = l + 2.

    N(y) = y / sqrt(mean(y^2) + eps). Unrolled, x = (v_0 + sum_i N(y_i)) / sqrt(l + 1): the stream of `rms-residual`
    divided by the square root of the number of its terms, which sublayers with a norm take out again up to its eps.
    norm=False has y for N(y), for sublayers that normalise their output themselves, as Beam's do, with a gain.
    Shapes: x and y [..., dim]; two numbers per site, fixed; no parameters. Values: x.
    Source: Beam (Reflection AI, 501B-A23B), `depth_scaled_residual_add` of transformers' beam.
    """

    def __init__(self, dim: int, sublayers: int, norm: bool = True, eps: float = 1e-6) -> None:
        super().__init__(dim, sublayers)
        self.norm = norm
        self.eps = eps

    def weigh(self, values: Values, site: int) -> Weights:
        return ()

    def gather(self, values: Values, weights: Weights, site: int) -> Tensor:
        return values[0]

    def weigh_output(self, values: Values, weights: Weights, site: int, y: Tensor) -> Weights:
        carry, write = ((site + 1) / (site + 2)) ** 0.5, (1 / (site + 2)) ** 0.5
        if self.norm:
            return carry, write * inverse_rms(y, self.eps)
        return carry, torch.full_like(widen(y)[..., :1], write)

    def scatter(self, values: Values, weights: Weights, site: int, h: Tensor, y: Tensor) -> Values:
        (x,), (carry, write) = values, weights
        return ((carry * widen(x) + write * y).to(x.dtype),)
