"""Full Attention Residuals: attention over every earlier output."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

from attnres.connections.rules.block import Block

if TYPE_CHECKING:
    from attnres.connections.rules.block import AttnResKeywords


class Full(Block):
    """Full Attention Residuals: h_l = sum_{i <= l} p_i v_i with p = softmax_i(w_l . RMSNorm(v_i; g_l, eps)).

    Options: those of `block` except block_size. Source: Attention Residuals (2603.15031), section 3; spec.md 3.
    """

    def __init__(self, dim: int, sublayers: int, **options: Unpack[AttnResKeywords]) -> None:
        super().__init__(dim, sublayers, block_size=1, **options)
