"""Keys and values of the tokens so far: the only state that decoding keeps between steps.

What depth carries is computed for each token, so no connection needs a cache of its own.
"""

from __future__ import annotations

import torch
from torch import Tensor

from attnres.model.modelconfig import TransformerConfig


class KVCache:
    """Preallocated keys and values of one attention sublayer, [batch, kv_heads, context, head_dim] each."""

    def __init__(self, config: TransformerConfig, batch: int, dtype: torch.dtype, device: torch.device) -> None:
        shape = (batch, config.n_kv_heads, config.context, config.head_dim)
        self.keys = torch.empty(shape, dtype=dtype, device=device)
        self.values = torch.empty(shape, dtype=dtype, device=device)
        self.length = 0

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Store the keys and values [batch, kv_heads, time, head_dim] of new tokens; return all so far."""
        stop = self.length + keys.shape[-2]
        self.keys[:, :, self.length : stop] = keys
        self.values[:, :, self.length : stop] = values
        self.length = stop
        return self.keys[:, :, :stop], self.values[:, :, :stop]
