"""mHC: hyper-connections whose stream mixing is doubly stochastic."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from attnres.connections.manifold import ManifoldStreams, Projections

SINKHORN_STEPS = 20


class MHC(ManifoldStreams):
    """H_res = Sinkhorn(exp(a_res mat(u P_res) + b_res)), 20 steps; H_pre and H_post as in the family.

    Each step normalises the columns, then the rows. b_res = 0 on and -8 off the diagonal at the start, which is within
    2e-3 of the identity. Source: Xie et al. 2025 (2512.24880).
    """

    def __init__(self, dim: int, sublayers: int, streams: int = 4, eps: float = 1e-6) -> None:
        super().__init__(dim, sublayers, streams, eps)
        self.res = Projections(self, streams * streams)
        self.bias_res = nn.ParameterList(-8 * (1 - torch.eye(streams)) for _ in range(sublayers))

    def residual_mixing(self, u: Tensor, site: int) -> Tensor:
        logits = self.res(u, site).unflatten(-1, (self.streams, self.streams)) + self.bias_res[site]
        return sinkhorn(logits)


def sinkhorn(logits: Tensor) -> Tensor:
    """The doubly stochastic matrix [..., n, n] that alternating normalisation of exp(logits) tends to."""
    # The first step is one of logarithms, in which no column vanishes. From there on every column and every row has an
    # entry of at least 1/n^2, so that no sum does.
    matrix = torch.softmax(torch.log_softmax(logits, -2), -1)
    for _ in range(SINKHORN_STEPS - 1):
        matrix = matrix / matrix.sum(-2, keepdim=True)
        matrix = matrix / matrix.sum(-1, keepdim=True)
    return matrix
