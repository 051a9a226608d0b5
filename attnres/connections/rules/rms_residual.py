"""The plain residual stream of normalised outputs: the control for RMS Block."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from attnres.connections.base import Connection, Mixture, Values, Weights, stream_dtype
from attnres.connections.rules.rms_block import output_weight
from attnres.ops import add_normalised


class RMSResidual(Connection):
    """h = x;  x <- x + N(y),  N(y) = y / sqrt(mean(y^2) + eps): what normalising outputs gives without attention.

    The embedding enters as it is. N is computed in float32, without a gain. Lower-triangular M holds 1/rms(y_i).
    gate=True: as in `rms-block`.
    Source: the normalisation of RMS Block Attention Residuals (see `rms-block`), on the plain stream.
    """

    def __init__(self, dim: int, sublayers: int, eps: float = 1e-6, gate: bool = False) -> None:
        super().__init__(dim, sublayers)
        self.eps = eps
        self.gate = nn.ParameterList(torch.zeros(1) for _ in range(sublayers)) if gate else None

    def weigh(self, values: Values, site: int) -> Weights:
        return ()

    def gather(self, values: Values, weights: Weights, site: int) -> Tensor:
        return values[0]

    def weigh_output(self, values: Values, weights: Weights, site: int, y: Tensor) -> Weights:
        return output_weight(y, self.eps, None if self.gate is None else self.gate[site])

    def scatter(self, values: Values, weights: Weights, site: int, h: Tensor, y: Tensor) -> Values:
        (x,) = values
        return ((x + weights * y).to(stream_dtype(x, y)),)

    def absorb(self, values: Values, weights: Weights, site: int, h: Mixture, y: Tensor) -> Values:
        if self.gate is not None:
            return super().absorb(values, weights, site, h, y)
        (x,) = values
        return (add_normalised(y, x, self.eps),)
