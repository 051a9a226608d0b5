"""Full Attention Residuals: attention over every earlier output."""

from __future__ import annotations

from attnres.connections.block import Block, Mixing, Query, Weighting


class Full(Block):
    """h_l = sum_{i <= l} p_i v_i with p = softmax_i(w_l . RMSNorm(v_i; g_l, eps)): Block with blocks of one sublayer.

    Options as in `block`, except block_size. Source: Attention Residuals (2603.15031), section 3; SPEC.md 3.
    """

    def __init__(
        self,
        dim: int,
        sites: int,
        eps: float = 1e-6,
        query: Query = "static",
        mixing: Mixing = "keys",
        weighting: Weighting = "softmax",
        key_norm: bool = True,
        heads: int = 1,
        window: int | None = None,
        total: bool = False,
        value_norm: bool = False,
        scaled_scores: bool = False,
    ) -> None:
        super().__init__(
            dim, sites, 1, eps, query, mixing, weighting, key_norm, heads, window, total, value_norm, scaled_scores
        )
