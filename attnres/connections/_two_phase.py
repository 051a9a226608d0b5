"""Depth attention in two phases (SPEC.md 5): the sites of a tile read the finished blocks at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import Tensor

from attnres.connections._connection import Connection, Mixture, Sublayer, Values, output_of, widen
from attnres.ops import attend

TILE = 4
"""How many sites, at least, read the finished blocks at once."""


class TwoPhase(Connection):
    """A rule with queries of its sites over `block_size` sublayers' sums: what its `run` shares with others.

    A subclass says which of the values are finished blocks (`_bank`), what a site attends to (`_visible`: the bank,
    then what was made since), its vectors, and how a mixture is made of the attention (`_joined`).
    """

    block_size: int
    eps: float
    _reads: list[int]

    def _bank(self, values: Values, first: int) -> Values:
        """The finished blocks at a site, which all later ones attend to."""
        raise NotImplementedError

    def _visible(self, values: Values, site: int) -> Values:
        """Those of the values that the site attends to."""
        raise NotImplementedError

    def _vectors(self, sites: range) -> tuple[list[Tensor], list[Tensor]]:
        """The queries and gains of all reads of consecutive sites."""
        raise NotImplementedError

    def _joined(
        self,
        values: Values,
        site: int,
        newest: Values,
        queries: Sequence[Tensor],
        gains: Sequence[Tensor],
        prior: Sequence[Tensor],
    ) -> Mixture:
        """What the site reads: attention over the newest sources, or none, joined with that of phase 1, or none.

        prior: for each read the attention over the bank, then for each the log-sum-exp of its scores.
        """
        raise NotImplementedError

    def run(self, values: Values, sublayers: Iterable[Sublayer], first: int = 0) -> Values:
        """Run, reading the finished blocks once per tile: a block, or several with at least TILE sites.

        Of one token they are in the cache, and a phase more is a call more.
        """
        if values[0].numel() == self.dim:
            return super().run(values, sublayers, first)
        sublayers = self._fitting(values, sublayers, first)
        tile = self.block_size * -(-TILE // self.block_size)
        while sublayers:
            end = min(first + len(sublayers), (first // tile + 1) * tile)
            now, sublayers = sublayers[: end - first], sublayers[end - first :]
            values = self._run_tile(values, now, first)
            first = end
        return values

    def _run_tile(self, values: Values, sublayers: list[Sublayer], first: int) -> Values:
        bank = self._bank(values, first)
        if len(sublayers) == 1 or not bank:
            return super().run(values, sublayers, first)
        waiting = self._phase_1(bank, range(first, first + len(sublayers)))
        for site, sublayer in enumerate(sublayers, first):
            newest = self._visible(values, site)[len(bank) :]
            # Popped and not kept: nobody needs what phase 1 made again, backward included.
            h = self._joined(values, site, newest, *waiting.pop(0))
            values = self.absorb(values, None, site, h, output_of(sublayer, h))
            del h  # before the next one is made, so that a decode step needs no memory for both
        return values

    def _phase_1(self, bank: Values, sites: range) -> list[tuple[list[Tensor], list[Tensor], list[Tensor]]]:
        """Return each site's queries, gains and prior."""
        queries, gains = self._vectors(sites)
        outs, lses = self._attend_to_bank(bank, queries, gains, sites)
        waiting, at = [], 0
        for site in sites:
            own = slice(at, at + self._reads[site])
            waiting.append((queries[own], gains[own], outs[own] + lses[own]))
            at = own.stop
        return waiting

    def _attend_to_bank(
        self, bank: Values, queries: list[Tensor], gains: list[Tensor], sites: range
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Phase 1: the attention of all reads of the sites over the finished blocks, not rounded, and its lses."""
        return attend(bank, queries, gains, (), self.eps, widen(bank[0]).dtype)
