"""What the manifold-constrained hyper-connections share: weights from the normalised, flattened streams."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnres.connections.base import Values, Weights, inverse_rms, widen
from attnres.connections.streams import Streams


class ManifoldStreams(Streams):
    """u = RMSNorm(vec X);  H_pre = sigmoid(a_pre u P_pre + b_pre);  H_post = 2 sigmoid(a_post u P_post + b_post).

    `residual_mixing` of a subclass gives H_res. At the start P = 0 and a = 0.01, and b_pre = b_post is +1 at stream
    l mod n and -1 elsewhere. Source: Xie et al. 2025 (2512.24880), section 4.
    """

    def __init__(self, dim: int, sublayers: int, streams: int = 4, eps: float = 1e-6) -> None:
        super().__init__(dim, sublayers, streams)
        self.eps = eps
        self.pre, self.post = Projections(self, streams), Projections(self, streams)
        one_hot = 2 * torch.eye(streams) - 1
        self.bias_pre = nn.ParameterList(one_hot[site % streams].clone() for site in range(sublayers))
        self.bias_post = nn.ParameterList(one_hot[site % streams].clone() for site in range(sublayers))

    def residual_mixing(self, u: Tensor, site: int) -> Tensor | None:
        """H_res [..., n, n] from u [..., n d]; None is the identity."""
        raise NotImplementedError

    def weigh(self, values: Values, site: int) -> Weights:
        if site == self.sublayers:
            return ()
        u = widen(values[0]).flatten(-2)
        u = u * inverse_rms(u, self.eps)
        pre = torch.sigmoid(self.pre(u, site) + self.bias_pre[site])
        post = 2 * torch.sigmoid(self.post(u, site) + self.bias_post[site])
        return pre, self.residual_mixing(u, site), post


class Projections(nn.Module):
    """a u P for each site: P [width, n d] = 0 and a = 0.01 at the start."""

    def __init__(self, family: Streams, width: int) -> None:
        super().__init__()
        sublayers, fan_in = family.sublayers, family.streams * family.dim
        self.fn = nn.ParameterList(torch.zeros(width, fan_in) for _ in range(sublayers))
        self.scale = nn.ParameterList(torch.full((1,), 0.01) for _ in range(sublayers))

    def forward(self, u: Tensor, site: int) -> Tensor:
        return self.scale[site] * F.linear(u, self.fn[site].to(u.dtype))
