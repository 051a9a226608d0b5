"""RMS Block Attention Residuals: attention over the sums of blocks of normalised outputs."""

from __future__ import annotations

from typing import Literal, get_args

from torch import Tensor

from attnres.connections._connection import Values, Weights, inverse_rms, one_of, stream_dtype
from attnres.connections._reads import Reads
from attnres.connections.block import Block

Pending = Literal["raw", "normalised"]


class RMSBlock(Block):
    """Block whose finished blocks are b = sum_{i in block} N(y_i),  N(y) = y / sqrt(mean(y^2) + eps).

    N is computed in float32, without a gain; sums are kept in the stream's dtype. The embedding stays raw.
    How sites read the open block:
      pending="raw"         as sum y_i; it becomes normalised when it is full (the published form)
      pending="normalised"  as sum N(y_i) at once: one tensor less in `values`
    With "raw" and an open block, `values` end in the normalised sum and the raw sum, of which only the latter is read.
    Source: RMS Block AttnRes (kimmichtank/rms-block-attnres, docs/design.md).
    """

    def __init__(
        self,
        dim: int,
        sites: int,
        block_size: int = 4,
        pending: Pending = "raw",
        eps: float = 1e-6,
        reads: Reads = "one",
    ) -> None:
        one_of("pending", pending, get_args(Pending))
        super().__init__(dim, sites, block_size=block_size, eps=eps, reads=reads)
        self.pending = pending

    def _visible(self, values: Values, site: int) -> Values:
        block_is_open = site % self.block_size > 0
        return (*values[:-2], values[-1]) if self.pending == "raw" and block_is_open else values

    def weigh_output(self, weights: Weights, site: int, y: Tensor) -> Weights:
        return inverse_rms(y, self.options.eps)

    def scatter(self, values: Values, weights: Weights, site: int, h: Tensor, y: Tensor) -> Values:
        finished = 1 + site // self.block_size
        closes_block = (site + 1) % self.block_size == 0
        sums = (weights * y, y) if self.pending == "raw" and not closes_block else (weights * y,)
        if finished < len(values):  # at a block's end its raw sum is dropped
            sums = tuple(before + new for before, new in zip(values[finished:], sums, strict=False))
        dtype = stream_dtype(values[0], y)
        return (*values[:finished], *(total.to(dtype) for total in sums))

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, pending={self.pending}"
