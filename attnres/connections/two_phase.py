"""Depth attention in two phases (spec.md 5): the sites of a tile read the finished blocks at once."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.compiler import is_compiling

from attnres.connections.base import Connection, Mixture, Normed, Sublayer, Values, Weights, widen
from attnres.connections.reads import mixture
from attnres.errors import UsageError, check_count
from attnres.ops import Norm, attend
from attnres.ops.backends import native_backend

LONG = 4
"""A block of so many sites is a tile."""
TILE = 8
"""Shorter blocks are joined to tiles of at least so many sites. For Full, narrow steps with 8 took 4% less time than
with 4 on two AVX2 cores, and peak memory was lower; with 12 they took longer."""
FEW = 16
"""Of so many tokens, without gradients, a site reads all its sources by itself: an engine that decodes a batch."""


def check_heads(heads: int, dim: int) -> None:
    check_count("heads", heads)
    if dim % heads:
        raise UsageError(f"heads must divide dim: {heads} does not divide {dim}")


class Reading(NamedTuple):
    """What a site asks: of each of its reads the query, the gain and, where phase 1 made it, a partial softmax: the
    attention over the bank and the log-sum-exp of its scores."""

    queries: Sequence[Tensor]
    gains: Sequence[Tensor]
    outs: Sequence[Tensor] = ()
    lses: Sequence[Tensor] = ()

    @property
    def prior(self) -> Sequence[Tensor]:
        """The partial softmax as `attnres.ops` takes it."""
        return [*self.outs, *self.lses]


class TwoPhase(Connection):
    """A rule with queries of its sites over `block_size` sublayers' sums: what its `run` shares with others.

    A subclass says which of the values are finished blocks (`_bank`), what a site attends to (`_visible`: the bank,
    then what was made since), its vectors, and how a mixture is made of the attention (`_read`).
    """

    block_size: int
    eps: float
    _reads: list[int]
    """How many mixtures are made at each site."""
    _shares_qk = False
    """Whether the first of two is for attention's q and k, which are handed the same tensor (reads="qk-v")."""
    _rounds_phase_1 = False
    _heads = 1
    """Slices of the channels with a softmax of their own in every read."""
    _reads_alone = False
    """Whether nothing but the read and the sum asks for h and y: then `_read` adds the one and normalises the other."""

    def reads(self, site: int) -> int:
        made = max(1, self._reads[site])
        return made + (self._shares_qk and made > 1)

    def _mixture(self, made: Iterable[Tensor]) -> Mixture:
        first, *others = made
        return mixture((first, first, *others) if self._shares_qk and others else (first, *others))

    def _bank(self, values: Values, first: int) -> Values:
        """The finished blocks at a site, which all later ones attend to."""
        raise NotImplementedError

    def _visible(self, values: Values, site: int) -> Values:
        """Those of the values that the site attends to."""
        raise NotImplementedError

    def _vectors(self, sites: range) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        """The queries and gains of all reads of consecutive sites."""
        raise NotImplementedError

    def _read(
        self,
        values: Values,
        site: int,
        newest: Values,
        reading: Reading,
        y: Tensor | None = None,
        norm: Norm | None = None,
    ) -> tuple[Values, Mixture]:
        """What the site reads: attention over the newest sources, or none, joined with that of phase 1, or none.

        y and norm are given where the rule says so (`_reads_alone`): what to add first to the last of the values, and
        the norm of the mixture. Returns the values with y, too.
        """
        raise NotImplementedError

    def _queries_of_heads(self, sites: range) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        """The vectors of the sites as [heads, dim / heads], where there are heads.

        For Triton, whose kernels have none, a query for each head instead, zero outside of its slice.
        """
        queries, gains = self._vectors(sites)
        if self._heads == 1 or not queries:
            return queries, gains
        if native_backend(queries[0].device.type) != "triton":
            return [q.view(self._heads, -1) for q in queries], [g.view(self._heads, -1) for g in gains]
        apart = [head for query in queries for head in torch.block_diag(*query.view(self._heads, -1)).unbind()]
        return apart, [gain for gain in gains for _ in range(self._heads)]

    def _joined(self, outs: Sequence[Tensor], reads: int) -> Sequence[Tensor]:
        """The mixtures: where each head has a query, of the outs their own slices."""
        if len(outs) == reads:
            return outs
        width = self.dim // self._heads
        slices = [out.narrow(-1, at % self._heads * width, width) for at, out in enumerate(outs)]
        return [torch.cat(slices[at : at + self._heads], -1) for at in range(0, len(slices), self._heads)]

    def mix(self, values: Values, site: int) -> tuple[Weights, Mixture]:
        reading = Reading(*self._queries_of_heads(range(site, site + 1)))
        return None, self._read(values, site, self._visible(values, site), reading)[1]

    def _leaves(self, site: int) -> bool:
        """Whether the sublayer's output is left for the next read to add."""
        return self._reads_alone and site % self.block_size > 0

    def run(self, values: Values, sublayers: Iterable[Sublayer], first: int = 0) -> Values:
        """Run, reading the finished blocks once per tile: a block, or several short ones.

        Of few tokens they are in the cache, and a phase more is a call more.
        """
        sublayers = self._fitting(values, sublayers, first)
        learns = torch.is_grad_enabled() or is_compiling()
        if values[0].numel() <= (1 if learns else FEW) * self.dim:
            return (self._run_tile if learns else self._run_few)(values, sublayers, first)
        tile = self.block_size if self.block_size >= LONG else self.block_size * -(-TILE // self.block_size)
        while sublayers:
            end = min(first + len(sublayers), (first // tile + 1) * tile)
            now, sublayers = sublayers[: end - first], sublayers[end - first :]
            values = self._run_tile(values, now, first, self._bank(values, first) if len(now) > 1 else ())
            first = end
        return values

    def _run_few(self, values: Values, sublayers: list[Sublayer], first: int) -> Values:
        """Run over few tokens without gradients."""
        return self._run_tile(values, sublayers, first)

    def _run_tile(self, values: Values, sublayers: list[Sublayer], first: int, bank: Values = ()) -> Values:
        """Run, with phase 1 over the bank if it holds anything."""
        sites = range(first, first + len(sublayers))
        waiting = (
            self._phase_1(bank, sites)
            if bank
            else [Reading(*self._queries_of_heads(range(at, at + 1))) for at in sites]
        )
        y: Tensor | None = None
        for site, sublayer in zip(sites, sublayers, strict=True):
            newest = self._visible(values, site)[len(bank) :]
            once = self._reads_alone and self._reads[site] == len(waiting[0].queries) == 1
            normed = sublayer if once and isinstance(sublayer, Normed) else None
            norm = normed and normed.norm
            # Popped and not kept: nobody needs what phase 1 made again, backward included.
            values, h = self._read(values, site, newest, waiting.pop(0), y, norm)
            y = self._output_of(normed.behind if normed else sublayer, h, values, site)
            if site == sites[-1] or not self._leaves(site):
                values, y = self.absorb(values, None, site, h, y), None
            del h  # before the next one is made, so that a decode step needs no memory for both
        return values

    def _phase_1(self, bank: Values, sites: range) -> list[Reading]:
        """Return what each site asks, with its partial softmax over the bank."""
        queries, gains = self._queries_of_heads(sites)
        outs, lses = self._attend_to_bank(bank, queries, gains, sites)
        heads = len(queries) // max(1, sum(self._reads[site] for site in sites))  # that are queries of their own
        counts = [self._reads[site] * heads for site in sites]
        owns = [slice(end - count, end) for count, end in zip(counts, itertools.accumulate(counts), strict=True)]
        return [Reading(queries[own], gains[own], outs[own], lses[own]) for own in owns]

    def _attend_to_bank(
        self, bank: Values, queries: Sequence[Tensor], gains: Sequence[Tensor], sites: range
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Phase 1: the attention of all reads of the sites over the finished blocks, and its lses in float32."""
        dtype = bank[0].dtype if self._rounds_phase_1 else widen(bank[0]).dtype
        return attend(bank, queries, gains, (), self.eps, dtype)
