"""RMS Block Attention Residuals: attention over the sums of blocks of normalised outputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

import torch
from torch import Tensor, nn

from attnres.connections.base import (
    Mixture,
    Values,
    Weights,
    inverse_rms,
    one_of,
    stream_dtype,
)
from attnres.connections.reads import Reads
from attnres.connections.rules.block import BLOCKS, Block
from attnres.ops import add_both, add_normalised

if TYPE_CHECKING:
    from attnres.connections.rules.block import AttnResKeywords

Pending = Literal["raw", "normalised"]


def output_weight(y: Tensor, eps: float, gate: Tensor | None) -> Tensor:
    """The weight of y that normalises it, 1/rms(y), or as far as a gate lets it: 1 - c + c / rms(y)."""
    weight = inverse_rms(y, eps)
    return weight if gate is None else 1 + gate * (weight - 1)


class RMSBlock(Block):
    """Block whose finished blocks are b = sum_{i in block} N(y_i),  N(y) = y / sqrt(mean(y^2) + eps).

    N is computed in float32, without a gain; sums are kept in the stream's dtype. The embedding stays raw.
    How sites read the open block:
      pending="raw"         as sum y_i; it becomes normalised when it is full (the published form)
      pending="normalised"  as sum N(y_i) at once: one tensor less in `values`
    With "raw" and an open block, `values` end in the normalised sum and the raw sum, of which only the latter is read.
    For weights trained with the plain residual: gate=True has (1 - c_l) y + c_l N(y) for N(y), c_l = 0 at the start,
    and total=True is Block's. heads=H: as Block's.
    Source: RMS Block AttnRes (kimmichtank/rms-block-attnres, docs/design.md).
    """

    def __init__(
        self,
        dim: int,
        sublayers: int,
        block_size: int | None = None,
        blocks: int = BLOCKS,
        pending: Pending = "raw",
        eps: float = 1e-6,
        reads: Reads = "one",
        gate: bool = False,
        total: bool = False,
        heads: int = 1,
    ) -> None:
        one_of("pending", pending, get_args(Pending))
        attention: AttnResKeywords = {"eps": eps, "reads": reads, "total": total, "heads": heads}
        super().__init__(dim, sublayers, block_size=block_size, blocks=blocks, **attention)
        self.pending = pending
        self._reads_alone = type(self).scatter is RMSBlock.scatter and type(self).absorb is RMSBlock.absorb
        # A last block that does not fill up is read raw: a gate there would never get a gradient.
        used = sublayers - sublayers % self.block_size if pending == "raw" else sublayers
        gates = (torch.zeros(1) if site < used else None for site in range(sublayers))
        self.gate = nn.ParameterList(gates) if gate else None

    def value_count(self, site: int) -> int:
        blocks, in_open_block = divmod(site, self.block_size)
        return 1 + blocks + (in_open_block > 0) * (2 if self.pending == "raw" else 1)

    def _visible(self, values: Values, site: int) -> Values:
        block_is_open = site % self.block_size > 0
        return (*values[:-2], values[-1]) if self.pending == "raw" and block_is_open else values

    def _leaves(self, site: int) -> bool:
        return False

    def weigh_output(self, values: Values, weights: Weights, site: int, y: Tensor) -> Weights:
        return output_weight(y, self.eps, None if self.gate is None else self.gate[site])

    def scatter(self, values: Values, weights: Weights, site: int, h: Tensor, y: Tensor) -> Values:
        finished, open_sums, keeps_raw = self._open(values, site)
        sums = (weights * y, y) if keeps_raw else (weights * y,)
        if open_sums:  # at a block's end its raw sum is dropped
            sums = tuple(before + new for before, new in zip(open_sums, sums, strict=False))
        dtype = stream_dtype(values[0], y)
        return (*finished, *(total.to(dtype) for total in sums))

    def absorb(self, values: Values, weights: Weights, site: int, h: Mixture, y: Tensor) -> Values:
        if self.gate is not None:
            return super().absorb(values, weights, site, h, y)
        finished, open_sums, keeps_raw = self._open(values, site)
        dtype = stream_dtype(values[0], y)
        total = open_sums[0] if open_sums else None
        if keeps_raw and total is not None:
            return (*finished, *add_both(y, total, open_sums[1], self.eps, dtype))
        normalised = add_normalised(y, total, self.eps, dtype=dtype)
        return (*finished, normalised, y.to(dtype)) if keeps_raw else (*finished, normalised)

    def _open(self, values: Values, site: int) -> tuple[Values, Values, bool]:
        """The finished blocks, the sums of the open one, and whether its raw sum is needed after this site."""
        finished = 1 + site // self.block_size
        closes_block = (site + 1) % self.block_size == 0
        return values[:finished], values[finished:], self.pending == "raw" and not closes_block
