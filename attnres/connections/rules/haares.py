"""HAARES: Block Attention Residuals that also read how each block's sum came about."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from attnres.connections.base import Mixture, Values, Weights, inverse_rms, stream_dtype, widen
from attnres.connections.reads import Reads, each_read, per_read
from attnres.connections.rules.block import Block
from attnres.connections.two_phase import Reading
from attnres.errors import UsageError
from attnres.ops import attend

START = -2.0


class HAARES(Block):
    """Block with a second source per block, its detail: the sum of its first half less the sum of its second half.

        b = sum_{i in block} y_i;   d = rms(b) / rms(D) D,  D = sum_{first half} y_i - sum_{second half} y_i
        h_l = sum_n p_n b_n + sum_n q_n d_n,  (p, q) = softmax(w_l . RMSNorm(b; g_l), w_l . RMSNorm(d; g_l) + c_l)

    rms(b) / rms(D) is a constant to the gradient; detach=False differentiates it, too. c_l = -2 at the start, one per
    site (and read). The open block is read in the same way, its detail from the second half on: before, D is b. Of an
    odd block the first half is the longer one. The embedding has no detail. Values: the embedding, then b and d of each
    finished block alternately, then b and D of the open one.
    Source: HAARES (2606.06564). Where its text did not fix it, chosen here: c_l = -2, learned; the
    detail of an open block; the odd block.
    """

    def __init__(
        self,
        dim: int,
        sublayers: int,
        block_size: int = 4,
        detach: bool = True,
        eps: float = 1e-6,
        reads: Reads = "one",
    ) -> None:
        super().__init__(dim, sublayers, block_size=block_size, eps=eps, reads=reads)
        if self.block_size < 2:
            raise UsageError("a block of one sublayer has no halves; give haares a block_size of at least 2")
        self.detach = detach
        self._half = -(-self.block_size // 2)
        # Where there is no detail there is no bias: one that never gets a gradient stops DistributedDataParallel.
        self.bias = nn.ParameterList(
            per_read(START, count, 1) if self._has_detail(site) else None for site, count in enumerate(self._reads)
        )

    def _has_detail(self, site: int) -> bool:
        return site >= self.block_size or site > self._half

    def value_count(self, site: int) -> int:
        blocks, in_open_block = divmod(site, self.block_size)
        return 1 + 2 * blocks + (in_open_block > 0) + (in_open_block > self._half)

    def _parts(self, values: Values, site: int, sources: Values) -> tuple[list[Tensor], list[Tensor]]:
        """The sums and the details among the last of the values, an open block's detail brought to its magnitude."""
        places = list(enumerate(sources, len(values) - len(sources)))
        sums = [source for place, source in places if place % 2 == 1 or place == 0]
        details = [source for place, source in places if place % 2 == 0 and place > 0]
        if self._detail_is_open(values, site):
            details[-1] = (self._factor(*values[-2:]) * details[-1]).to(details[-1].dtype)
        return sums, details

    def _detail_is_open(self, values: Values, site: int) -> bool:
        return len(values) == len(self._bank(values, site)) + 2

    def _factor(self, total: Tensor, difference: Tensor) -> Tensor:
        """rms(total) / rms(difference), [..., 1]."""
        factor = inverse_rms(difference, self.eps) / inverse_rms(total, self.eps)
        return factor.detach() if self.detach else factor

    def _own_biases(self, site: int) -> list[Tensor]:
        """Those of the site's reads; none where it sees no detail."""
        return list(each_read(self.bias[site], self._reads[site])) if self._has_detail(site) else []

    def _weights(self, sources: Values, site: int, read: int) -> Tensor:
        """The weights of one read: of the sums, then of the details, in the order of `sources`."""
        sums, details = self._parts(sources, site, sources)
        scores = self._scores((*sums, *details), site, read)
        if not details:
            return torch.softmax(scores, 0)
        of_details = scores[len(sums) :] + self._own_biases(site)[read]
        weights = torch.softmax(torch.cat([scores[: len(sums)], of_details]), 0)
        if not self._detail_is_open(sources, site):
            return weights
        return torch.cat([weights[:-1], weights[-1:] * self._factor(*sources[-2:])])

    def gather(self, values: Values, weights: Weights, site: int) -> Mixture:
        if isinstance(weights, tuple):
            return self._mixture(self.gather(values, of_read, site) for of_read in weights)
        return super().gather((values[0], *values[1::2], *values[2::2]), weights, site)

    def weigh_output(self, values: Values, weights: Weights, site: int, y: Tensor) -> Weights:
        closes_block = (site + 1) % self.block_size == 0
        return self._factor(*self._open(values, site, y)) if closes_block else ()

    def scatter(self, values: Values, weights: Weights, site: int, h: Mixture, y: Tensor) -> Values:
        total, *difference = self._open(values, site, y)
        if (site + 1) % self.block_size == 0:
            difference = [weights * difference[0]]
        dtype = stream_dtype(values[0], y)
        return (*self._bank(values, site), *(x.to(dtype) for x in (total, *difference)))

    def _open(self, values: Values, site: int, y: Tensor) -> list[Tensor]:
        """The sum of the open block with y and, from its second half on, that of the first half less the second."""
        before, place = values[1 + 2 * (site // self.block_size) :], site % self.block_size
        if place < self._half:
            return [before[0] + y if before else y]
        return [before[0] + y, before[-1] - y]  # at the beginning of the second half the sum is the difference

    def _bank(self, values: Values, first: int) -> Values:
        return values[: 1 + 2 * (first // self.block_size)]

    def _attend_to_bank(
        self, bank: Values, queries: Sequence[Tensor], gains: Sequence[Tensor], sites: range
    ) -> tuple[list[Tensor], list[Tensor]]:
        biases = [bias for site in sites for bias in self._own_biases(site)]
        return self._attend(*self._parts(bank, sites[0], bank), Reading(queries, gains), biases, widen(bank[0]).dtype)

    def _read(self, values: Values, site: int, newest: Values, reading: Reading, *_: None) -> tuple[Values, Mixture]:
        if not newest:
            return super()._read(values, site, newest, reading)
        parts, biases = self._parts(values, site, newest), self._own_biases(site)
        return values, self._mixture(self._attend(*parts, reading, biases, values[0].dtype)[0])

    def _attend(
        self,
        sums: list[Tensor],
        details: list[Tensor],
        reading: Reading,
        biases: Sequence[Tensor],
        dtype: torch.dtype,
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Attention over both. That over the details, its log-sum-exp raised by the bias, joins the sums as a prior."""
        queries, gains, outs, lses = reading
        if details:
            lses = [lse - bias.squeeze(-1) for lse, bias in zip(lses, biases, strict=False)]
            outs, lses = attend(details, queries, gains, [*outs, *lses], self.eps, widen(details[0]).dtype)
            lses = [lse + bias.squeeze(-1) for lse, bias in zip(lses, biases, strict=True)]
        return attend(sums, queries, gains, [*outs, *lses], self.eps, dtype)
