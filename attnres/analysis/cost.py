"""What a connection costs, by formula and by counting: memory traffic, bytes between pipeline stages (spec.md 8).

Units: d is the width of the stream; "entries" are tensors of [tokens, d]. L counts sublayers, S is the block size in
sublayers, N = L/S the number of blocks, P the pipeline stages, V the virtual stages of each, C = PV the chunks.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from fractions import Fraction

from attnres.analysis.timeline import Action, Timeline, schedule_actions, simulate
from attnres.errors import UsageError, check_count, refuse_non_finite
from attnres.parallel.schedule import Schedule, chunk_sites, default_schedule, even_cuts


@dataclass(frozen=True)
class Traffic:
    """Elements that one token moves to and from memory at one sublayer, in units of d."""

    connection: str
    formula: str
    units: float


def memory_traffic(dim: int, block_size: int, blocks: Fraction, streams: int = 4) -> list[Traffic]:
    """Return the table of spec.md 8.

    Where Block's N/S + 5 comes from: phase 1 reads up to N blocks once for S sublayers (N/S) and writes each site's
    output (1); phase 2 reads that (1), the partial (1) and the sublayer's output (1), and writes the partial (1).
    """
    n, s, m = blocks, block_size, streams
    return [
        Traffic("residual", "3d", 3),
        Traffic("mhc", "(8m + 2)d + 2m^2 + 4m", 8 * m + 2 + (2 * m**2 + 4 * m) / dim),
        Traffic("full, two-phase", "(S + N)d", float(s + n)),
        Traffic("block, two-phase", "(N/S + 5)d", float(n / s + 5)),
    ]


@dataclass(frozen=True)
class Transfers:
    """Entries that go into chunk 1, 2, .. C-1 at each transition, without cross-stage caching and with it."""

    naive: list[Fraction]
    cached: list[Fraction]


def formula_transfers(pipeline: int, virtual: int, new_blocks: Fraction) -> Transfers:
    """The transitions that spec.md 8's formulas add up, when every chunk makes `new_blocks` = N_p blocks.

    A chunk is one virtual stage of a rank: 2603.15031 adds up a chunk j that has gathered j N_p.

    Naive, chunk j receives the blocks of all j chunks before it; cached, of those since its rank's previous chunk: all
    of them in the first virtual stage, P chunks' afterwards. (Of these P its own made one, which the implementation
    here does not send back: `attnres.parallel` moves fewer.)
    """
    transitions = range(1, pipeline * virtual)
    return Transfers([j * new_blocks for j in transitions], [min(j, pipeline) * new_blocks for j in transitions])


def counted_transfers(sites: list[range], block_size: int, pipeline: int) -> Transfers:
    """What Block's values hold at each transition, and what of it the receiver lacks. `sites` are each chunk's.

    Over the formulas this counts the embedding and the open partial too, takes chunks that are no whole number of
    blocks as they are, and sends no rank what it has made itself.
    """

    naive, cached = [], []
    for chunk in range(1, len(sites)):
        site = sites[chunk].start
        finished = 1 + site // block_size  # the embedding is a block of its own
        known = 1 + sites[chunk - pipeline].stop // block_size if chunk >= pipeline else 0
        partial = site % block_size > 0
        naive.append(Fraction(finished + partial))
        cached.append(Fraction(finished - known + partial))
    return Transfers(naive, cached)


@dataclass(frozen=True)
class Plan:
    """A model, a cluster and a layout that need not be here."""

    layers: int = 128
    """Sublayers L."""
    block_size: int = 16
    """Sublayers in a block, S."""
    dim: int = 7168
    """Width of the stream, d."""
    streams: int = 4
    """Streams m of the hyper-connections in the table of memory traffic."""
    pipeline: int = 8
    """Ranks in the pipeline, P."""
    virtual: int = 4
    """Virtual stages on each rank, V."""
    schedule: Schedule | None = None
    """The order of work; interleaved-1f1b when not given, or 1f1b where there is one virtual stage."""
    micro_batches: int = 16
    """Micro-batches in a step."""
    tokens: int = 4096
    """Tokens in a micro-batch."""
    element_bytes: int = 2
    """Bytes of each number that is sent: 2 for bfloat16."""
    link: float = 50.0
    """Speed between two ranks, one way, in GB/s (10^9 bytes)."""
    tflops: float = 400.0
    """What a rank sustains, in 10^12 floating-point operations per second."""
    sublayer_parameters: float | None = None
    """Active parameters of a sublayer, on average; 6 d^2, as in a dense transformer, when not given."""

    def __post_init__(self) -> None:
        refuse_non_finite(self)
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, int | float) and value <= 0:
                raise UsageError(f"{field.name} must be positive, not {value}")
        check_count("layers", self.layers)
        if self.block_size > self.layers:
            raise UsageError(f"block_size {self.block_size} is more than the {self.layers} sublayers of --layers")
        _ = self.sites

    @property
    def blocks(self) -> Fraction:
        """N."""
        return Fraction(self.layers, self.block_size)

    @property
    def new_blocks(self) -> Fraction:
        """N_p, of one chunk; a fraction where chunks are shorter than blocks."""
        return self.blocks / (self.pipeline * self.virtual)

    @property
    def sites(self) -> list[range]:
        """The sites of each chunk."""
        return chunk_sites(self.layers, even_cuts(self.layers, self.pipeline * self.virtual))

    @property
    def entry_bytes(self) -> int:
        return self.tokens * self.dim * self.element_bytes

    @property
    def sublayer_seconds(self) -> float:
        """Estimate a forward pass over one micro-batch: 2 FLOPs per parameter and token. The connection is left out."""
        parameters = 6 * self.dim**2 if self.sublayer_parameters is None else self.sublayer_parameters
        return 2 * parameters * self.tokens / (self.tflops * 1e12)

    def transfer_seconds(self, entries: Fraction | float) -> float:
        return float(entries) * self.entry_bytes / (self.link * 1e9)

    def formula(self) -> Transfers:
        return formula_transfers(self.pipeline, self.virtual, self.new_blocks)

    def counted(self) -> Transfers:
        return counted_transfers(self.sites, self.block_size, self.pipeline)

    def actions(self) -> list[list[Action]]:
        """What each rank does in a step, in order."""
        schedule = self.schedule or default_schedule(self.virtual)
        return schedule_actions(schedule, self.pipeline, self.virtual, self.micro_batches)

    def timelines(self) -> dict[str, Timeline]:
        """One step with Block's transfers, cached and naive, and with the plain residual's single stream."""
        actions = self.actions()
        forward = [self.sublayer_seconds * len(sites) for sites in self.sites]
        counted, stream = self.counted(), [Fraction(1)] * (len(forward) - 1)
        return {
            name: simulate(actions, forward, [0.0, *map(self.transfer_seconds, entries)])
            for name, entries in {
                "residual": stream,
                "block, cached": counted.cached,
                "block, naive": counted.naive,
            }.items()
        }
