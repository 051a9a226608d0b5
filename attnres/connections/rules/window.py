"""Sliding-window Attention Residuals: the embedding and the newest outputs only."""

from __future__ import annotations

from typing import Any

from attnres.connections.rules.full import Full
from attnres.errors import check_count


class Window(Full):
    """AttnRes over v_0 and the newest `window` sources: what is lost when depth is cut off.

    Options: those of `full`. Source: Attention Residuals (2603.15031), Table 4, "SWA (W = 1 + 8)".
    """

    def __init__(self, dim: int, sublayers: int, window: int = 8, **options: Any) -> None:
        check_count("window", window)
        super().__init__(dim, sublayers, window=window, **options)
