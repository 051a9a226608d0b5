"""mHC-lite: exactly doubly stochastic mixing, as an average of permutations."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations
from typing import Any, Self

import torch
from torch import Tensor, nn

from attnres.connections.manifold import ManifoldStreams, Projections
from attnres.errors import UsageError


class MHCLite(ManifoldStreams):
    """H_res = sum_k softmax(a_res u P_res + b_res)_k Perm_k over all n! permutation matrices.

    By Birkhoff's theorem this reaches every doubly stochastic matrix, without iterations. b_res = 0 for the identity
    and -8 for the others at the start. Source: 2601.05732.
    """

    permutations: Tensor

    def __init__(self, dim: int, sublayers: int, streams: int = 4, eps: float = 1e-6) -> None:
        if isinstance(streams, int) and streams > 6:
            raise UsageError(f"mhc-lite holds streams! permutations; streams must be at most 6, not {streams}")
        super().__init__(dim, sublayers, streams, eps)
        matrices = _permutations(streams)
        self.register_buffer("permutations", matrices, persistent=False)
        self.register_load_state_dict_post_hook(_refill)
        self.res = Projections(self, len(matrices))
        identity_first = torch.full((len(matrices),), -8.0)
        identity_first[0] = 0.0
        self.bias_res = nn.ParameterList(identity_first.clone() for _ in range(sublayers))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move it, as `to` and `to_empty` do, of which the latter leaves nothing in a buffer that no state brings."""
        super()._apply(fn, recurse)
        _refill(self)
        return self

    def residual_mixing(self, u: Tensor, site: int) -> Tensor:
        share = torch.softmax(self.res(u, site) + self.bias_res[site], -1)
        return torch.einsum("...k,kst->...st", share, self.permutations.to(share.dtype))


def _permutations(streams: int, device: torch.device | None = None) -> Tensor:
    """All permutation matrices, [n!, n, n], the identity first."""
    orders = torch.tensor(list(permutations(range(streams))), device=device)
    return torch.eye(streams, device=device)[orders]


def _refill(connection: MHCLite, *_: Any) -> None:
    """Make the permutations again, where the parameters are by now."""
    device = next((parameter.device for parameter in connection.parameters()), connection.permutations.device)
    connection.permutations = _permutations(connection.streams, device)
