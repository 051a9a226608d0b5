"""Depth attention in two phases (spec.md 5): the sites of a tile read the finished blocks at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor
from torch.compiler import is_compiling

from attnres.connections.base import Connection, Mixture, Sublayer, Values, widen
from attnres.connections.reads import mixture
from attnres.ops import attend

TILE = 4
"""How many sites, at least, read the finished blocks at once."""
FEW = 16
"""Of so many tokens, without gradients, a site reads all its sources by itself: an engine that decodes a batch."""


class TwoPhase(Connection):
    """A rule with queries of its sites over `block_size` sublayers' sums: what its `run` shares with others.

    A subclass says which of the values are finished blocks (`_bank`), what a site attends to (`_visible`: the bank,
    then what was made since), its vectors, and how a mixture is made of the attention (`_joined`).
    """

    block_size: int
    eps: float
    _reads: list[int]
    """How many mixtures are made at each site."""
    _shares_qk = False
    """Whether the first of two is for attention's q and k, which are handed the same tensor (reads="qk-v")."""
    _rounds_phase_1 = False

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

    def _taken_up(self, values: Values, site: int, h: Mixture, y: Tensor) -> tuple[Values, Tensor | None]:
        """The values behind a site, and what the next one is to add to the last of them when it reads it, if anything.

        A rule that leaves something to be added has `_added_and_joined`.
        """
        return self.absorb(values, None, site, h, y), None

    def _added_and_joined(
        self,
        values: Values,
        y: Tensor,
        site: int,
        newest: Values,
        queries: Sequence[Tensor],
        gains: Sequence[Tensor],
        prior: Sequence[Tensor],
    ) -> tuple[Values, Mixture]:
        """The values with y added to the last, which is that of the newest, too, and then `_joined`: in one pass."""
        raise NotImplementedError

    def run(self, values: Values, sublayers: Iterable[Sublayer], first: int = 0) -> Values:
        """Run, reading the finished blocks once per tile: a block, or several with at least TILE sites.

        Of few tokens they are in the cache, and a phase more is a call more.
        """
        sublayers = self._fitting(values, sublayers, first)
        few = 1 if torch.is_grad_enabled() or is_compiling() else FEW
        if values[0].numel() <= few * self.dim:
            return self._run_tile(values, sublayers, first, ())
        tile = self.block_size * -(-TILE // self.block_size)
        while sublayers:
            end = min(first + len(sublayers), (first // tile + 1) * tile)
            now, sublayers = sublayers[: end - first], sublayers[end - first :]
            values = self._run_tile(values, now, first, self._bank(values, first) if len(now) > 1 else ())
            first = end
        return values

    def _run_tile(self, values: Values, sublayers: list[Sublayer], first: int, bank: Values) -> Values:
        """Run, with phase 1 over the bank if it holds anything."""
        sites = range(first, first + len(sublayers))
        if bank:
            waiting = self._phase_1(bank, sites)
        else:
            waiting = [(*self._vectors(range(site, site + 1)), []) for site in sites]
        to_add: Tensor | None = None
        for site, sublayer in zip(sites, sublayers, strict=True):
            newest = self._visible(values, site)[len(bank) :]
            # Popped and not kept: nobody needs what phase 1 made again, backward included.
            if to_add is None:
                h = self._joined(values, site, newest, *waiting.pop(0))
            else:
                values, h = self._added_and_joined(values, to_add, site, newest, *waiting.pop(0))
            y = self._output_of(sublayer, h, values, site)
            if site == sites[-1]:
                return self.absorb(values, None, site, h, y)
            values, to_add = self._taken_up(values, site, h, y)
            del h, y  # before the next ones are made, so that a decode step needs no memory for both
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
        """Phase 1: the attention of all reads of the sites over the finished blocks, and its lses in float32."""
        dtype = bank[0].dtype if self._rounds_phase_1 else widen(bank[0]).dtype
        return attend(bank, queries, gains, (), self.eps, dtype)
