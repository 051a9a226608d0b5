"""RMS Full Attention Residuals: attention over every earlier output, normalised."""

from __future__ import annotations

from attnres.connections.reads import Reads
from attnres.connections.rules.rms_block import RMSBlock


class RMSFull(RMSBlock):
    """h_l = p_0 v_0 + sum_{i >= 1} p_i N(v_i) with p as in `full`: RMS Block with blocks of one sublayer.

    The embedding stays raw. Source: as `rms-block`, whose authors' "Full+RMS" also puts the key's gain on the values.
    """

    def __init__(
        self,
        dim: int,
        sublayers: int,
        eps: float = 1e-6,
        reads: Reads = "one",
        gate: bool = False,
        total: bool = False,
    ) -> None:
        super().__init__(dim, sublayers, block_size=1, eps=eps, reads=reads, gate=gate, total=total)
