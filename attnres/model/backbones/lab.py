"""The lab's own backbone: grouped-query attention with rotary positions, and SwiGLU.

Shapes: B batch, T time, D dim, H query heads, K key/value heads, E head dim.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnres.model.backbones._backbone import Backbone, Context, PreNormed
from attnres.model.backbones.normed_linear import normed_linear
from attnres.model.cache import KVCache
from attnres.model.modelconfig import TransformerConfig


class Lab(Backbone):
    """Attention and MLP without biases, as in Llama."""

    reads = (3, 2)

    def sublayers(self, pre_norm: bool) -> list[nn.Module]:
        numbers = range(self.config.layers)
        layers = [(Attention(self.config, layer, pre_norm), MLP(self.config, pre_norm)) for layer in numbers]
        return [sublayer for layer in layers for sublayer in layer]

    def angles(self) -> tuple[Tensor, Tensor]:
        half = self.config.head_dim // 2
        frequency = self.config.rope_base ** (-torch.arange(half, dtype=torch.float32) / half)
        angle = torch.outer(torch.arange(self.config.context, dtype=torch.float32), frequency)
        return angle.cos(), angle.sin()

    def new_caches(self, batch: int, dtype: torch.dtype, device: torch.device) -> list[KVCache]:
        return [KVCache(self.config, batch, dtype, device) for _ in range(self.config.layers)]

    def cached_tokens(self, caches: list[KVCache]) -> int:
        return caches[0].length

    @property
    def experts_per_token(self) -> int:
        return 0

    def mixing_flops(self) -> float:
        return self.config.layers * 4 * self.config.dim * (self.config.context + 1) / 2


class Attention(PreNormed):
    """Causal grouped-query attention with rotary positions, on normalised input."""

    def __init__(self, config: TransformerConfig, layer: int, pre_norm: bool) -> None:
        super().__init__()
        self.layer = layer
        self.heads, self.kv_heads = config.heads, config.n_kv_heads
        self.norm = nn.RMSNorm(config.dim, config.norm_eps) if pre_norm else nn.Identity()
        self.q = nn.Linear(config.dim, config.heads * config.head_dim, bias=False)
        self.k = nn.Linear(config.dim, self.kv_heads * config.head_dim, bias=False)
        self.v = nn.Linear(config.dim, self.kv_heads * config.head_dim, bias=False)
        self.out = nn.Linear(config.heads * config.head_dim, config.dim, bias=False)

    def forward(
        self, h: Tensor, h_k: Tensor | None = None, h_v: Tensor | None = None, *, context: Context, normed: bool = False
    ) -> Tensor:
        """Keys and values read h_k and h_v where the connection makes them, and else what queries read."""
        if h_k is None or h_v is None:
            x = h if normed else self.norm(h)
            q, k, v = self.q(x), self.k(x), self.v(x)
        else:
            q, k, v = (
                normed_linear(self.norm, linear, read) for linear, read in ((self.q, h), (self.k, h_k), (self.v, h_v))
            )
        q = rotate(q.unflatten(-1, (self.heads, -1)).transpose(1, 2), context)
        k = rotate(k.unflatten(-1, (self.kv_heads, -1)).transpose(1, 2), context)
        v = v.unflatten(-1, (self.kv_heads, -1)).transpose(1, 2)
        if context.caches is not None:
            k, v = context.caches[self.layer].append(k, v)
        y = F.scaled_dot_product_attention(q, k, v, **_causal(q, k), enable_gqa=self.heads != self.kv_heads)
        return self.out(y.transpose(1, 2).flatten(-2))


class MLP(PreNormed):
    """SwiGLU on normalised input."""

    def __init__(self, config: TransformerConfig, pre_norm: bool) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(config.dim, config.norm_eps) if pre_norm else nn.Identity()
        self.gate = nn.Linear(config.dim, config.n_hidden, bias=False)
        self.up = nn.Linear(config.dim, config.n_hidden, bias=False)
        self.out = nn.Linear(config.n_hidden, config.dim, bias=False)

    def forward(self, h: Tensor, h_up: Tensor | None = None, *, context: Context, normed: bool = False) -> Tensor:
        """`up` reads h_up where the connection makes it, and else what the gate reads."""
        if h_up is None:
            x = h if normed else self.norm(h)
            gate, up = self.gate(x), self.up(x)
        else:
            gate, up = normed_linear(self.norm, self.gate, h), normed_linear(self.norm, self.up, h_up)
        return self.out(F.silu(gate) * up)


def rotate(x: Tensor, context: Context) -> Tensor:
    """Turn the channel pairs (i, i + E/2) of x [B, H, T, E] by their positions' angles. RoFormer (2104.09864)."""
    left, right = x.chunk(2, -1)
    cos, sin = context.cos, context.sin
    return torch.cat([left * cos - right * sin, left * sin + right * cos], -1).to(x.dtype)


def _causal(q: Tensor, k: Tensor) -> dict:
    """is_causal aligns to the top left; with cached keys the new queries stand at the bottom right."""
    new, stored = q.shape[-2], k.shape[-2]
    if new == stored:
        return {"is_causal": True}
    if new == 1:
        return {}
    return {"attn_mask": torch.ones(new, stored, dtype=torch.bool, device=q.device).tril(stored - new)}
