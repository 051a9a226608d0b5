"""Depth attention as a module, for a model that keeps its own loop over sublayers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from attnres.ops.operators import depth_attention


class DepthAttention(nn.Module):
    """One read of depth: h = sum_i p_i v_i with p = softmax_i(query . RMSNorm(v_i; gain, eps)).

    A model that keeps a list of its sublayers' outputs needs one for each sublayer and one before its final norm. The
    query starts at zero, so that h is the mean of the sources; the gain starts at one.
    Source: Attention Residuals (2603.15031), eq. 3.

    Args:
        dim: the width d of the stream.
        eps: added to the mean square.
    """

    rate = 10.0
    """As of a `Connection`: how many times the weights' learning rate `param_groups` gives to its parameters."""

    def __init__(self, dim: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.zeros(dim))
        self.gain = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, sources: Sequence[Tensor] | Tensor) -> Tensor:
        """Read the sources v_i [..., d], which are what `depth_attention` takes; h has the dtype of the first."""
        with torch.autocast(sources[0].device.type, enabled=False):  # keys in bfloat16 would lose the scores
            return depth_attention(sources, self.query, self.gain, self.eps)

    def extra_repr(self) -> str:
        return f"dim={len(self.query)}, eps={self.eps}"
