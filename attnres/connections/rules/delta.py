"""Attention over depth added to the residual stream instead of replacing it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import Tensor, nn

from attnres.connections.base import Mixture, Values, Weights, widen
from attnres.connections.reads import Reads, each_read, per_read, reads_of_sites
from attnres.connections.two_phase import Reading, TwoPhase, check_heads
from attnres.errors import check_count
from attnres.ops import depth_weights, read
from attnres.ops.reference import over_channels


class Delta(TwoPhase):
    """h = x + sum_i p_i b_i over the sums b of the blocks of sublayer outputs so far;  x <- x + y;  the readout is x.

    Blocks have `block_size` sublayers, the open one's partial sum included; with block_size=1 (the start) they are the
    outputs themselves, and block_size=4 or so is the authors' Delta Block. p = softmax_i(w_l . RMSNorm(b_i; g_l, eps))
    as in AttnRes; the first site reads h = x. w_l = 0 at the start. reads="qkv" or "qkv-gate-up": with queries of their
    own, attention's q, k and v, and an MLP's gate and up, each read a mixture.
    heads=H: slices of the channels, each with a softmax of its own, as in multi-head depth attention (MHAR).
    gate=True, for weights trained with the plain residual: h = x + c_l sum_i p_i b_i, c_l = 0 at the start, one per
    site and read.
    Values: x, then the block sums. Source: Delta Attention Residuals (2605.18855). The published code also has the
    embedding among the sources, and of blocks only the finished ones.
    """

    def __init__(
        self,
        dim: int,
        sublayers: int,
        block_size: int = 1,
        eps: float = 1e-6,
        reads: Reads = "one",
        gate: bool = False,
        heads: int = 1,
    ) -> None:
        super().__init__(dim, sublayers)
        check_count("block_size", block_size)
        check_heads(heads, dim)
        self._heads = heads
        self.block_size = block_size
        self.eps = eps
        self._reads = reads_of_sites(reads, sublayers)
        self._shares_qk = reads == "qk-v"
        self._reads[0] = 1
        # Site 0 has nothing to attend to; None keeps query[site] true.
        counts = self._reads[1:-1]
        self.query = nn.ParameterList([None, *(per_read(0.0, count, dim) for count in counts)])
        self.gain = nn.ParameterList([None, *(per_read(1.0, count, dim) for count in counts)])
        self.gate = nn.ParameterList([None, *(per_read(0.0, count, 1) for count in counts)]) if gate else None

    def value_count(self, site: int) -> int:
        return 1 + -(-site // self.block_size)

    def _queries(self, site: int) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        """The query and the gain of each read; none where the site reads the stream alone."""
        if site in (0, self.sublayers):
            return (), ()
        return each_read(self.query[site], self._reads[site]), each_read(self.gain[site], self._reads[site])

    def _gated(self, of_reads: Iterable[Tensor], site: int) -> Iterable[Tensor]:
        if self.gate is None or site in (0, self.sublayers):
            return of_reads
        gates = each_read(self.gate[site], self._reads[site])
        return (gate * of_read for gate, of_read in zip(gates, of_reads, strict=True))

    def weigh(self, values: Values, site: int) -> Weights:
        queries, gains = self._queries(site)
        weights = (
            depth_weights(values[1:], *vectors, self.eps, self._heads) for vectors in zip(queries, gains, strict=True)
        )
        return tuple(self._gated(weights, site))

    def gather(self, values: Values, weights: Weights, site: int) -> Mixture:
        x, *blocks = values
        if not weights:
            return x
        shares = [over_channels(of_read, self.dim) for of_read in weights]
        return self._mixture(
            sum((p * block for p, block in zip(of_read, blocks, strict=True)), x).to(x.dtype) for of_read in shares
        )

    def _bank(self, values: Values, first: int) -> Values:
        return values[1 : 1 + first // self.block_size]

    def _visible(self, values: Values, site: int) -> Values:
        return values[1:]

    def _vectors(self, sites: range) -> tuple[list[Tensor], list[Tensor]]:
        pairs = [self._queries(site) for site in sites]
        return [q for queries, _ in pairs for q in queries], [g for _, gains in pairs for g in gains]

    def _read(self, values: Values, site: int, newest: Values, reading: Reading, *_: None) -> tuple[Values, Mixture]:
        x = values[0]
        if not reading.queries:
            return values, x
        outs = read(newest, None, reading.queries, reading.gains, reading.prior, self.eps, widen(x).dtype)[0]
        return values, self._mixture(
            (x + out).to(x.dtype) for out in self._gated(self._joined(outs, self._reads[site]), site)
        )

    def scatter(self, values: Values, weights: Weights, site: int, h: Tensor, y: Tensor) -> Values:
        x, *blocks = values
        opens_block = site % self.block_size == 0
        return (x + y, *blocks, y) if opens_block else (x + y, *blocks[:-1], blocks[-1] + y)
