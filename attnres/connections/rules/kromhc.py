"""KromHC: doubly stochastic mixing of streams as a Kronecker product of small ones."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from attnres.connections.manifold import ManifoldStreams, Projections
from attnres.errors import UsageError, check_count


class KromHC(ManifoldStreams):
    """H_res = U_1 x .. x U_K for n = 2^K streams,  U_k = a_k I + (1 - a_k) swap,  (a_k, 1 - a_k) a softmax.

    The 2K logits are a_res u P_res + b_res. Doubly stochastic without iterations, with K log-odds where mhc-lite has n!
    permutations. b_res = 0 for I and -8 for the swap at the start. Source: 2601.21579, with factors of two streams,
    and the start of mhc-lite.
    """

    def __init__(self, dim: int, sublayers: int, streams: int = 4, eps: float = 1e-6) -> None:
        check_count("streams", streams)
        if streams == 1 or streams & (streams - 1):
            raise UsageError(f"kromhc pairs its streams; streams must be 2, 4, 8 or so on, not {streams}")
        super().__init__(dim, sublayers, streams, eps)
        self.factors = streams.bit_length() - 1
        self.res = Projections(self, 2 * self.factors)
        self.bias_res = nn.ParameterList(torch.tensor([0.0, -8.0]).repeat(self.factors) for _ in range(sublayers))

    def residual_mixing(self, u: Tensor, site: int) -> Tensor:
        logits = (self.res(u, site) + self.bias_res[site]).unflatten(-1, (self.factors, 2))
        shares = torch.softmax(logits, -1)  # [..., K, 2]
        matrix = u.new_ones(*u.shape[:-1], 1, 1)
        for factor in torch.stack([shares, shares.flip(-1)], -2).unbind(-3):  # each [..., 2, 2]
            matrix = torch.einsum("...st,...uv->...sutv", matrix, factor).flatten(-4, -3).flatten(-2)
        return matrix
