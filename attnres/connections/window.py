"""Sliding-window Attention Residuals: the embedding and the newest outputs only."""

from __future__ import annotations

from attnres.connections.block import Block


class Window(Block):
    """AttnRes over v_0 and the newest `window` sources: what is lost when depth is cut off.

    Source: Attention Residuals (2603.15031), Table 4, "SWA (W = 1 + 8)".
    """

    def __init__(self, dim: int, sites: int, window: int = 8, eps: float = 1e-6) -> None:
        super().__init__(dim, sites, block_size=1, eps=eps, window=window)
