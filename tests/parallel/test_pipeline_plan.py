"""What travels between stages, from the connections' maths alone: no process is started here."""

from __future__ import annotations

import functools
import itertools
import random
from dataclasses import replace

import pytest
import torch

from attnres.connections import connection_names, make_connection
from attnres.model import Transformer, TransformerConfig
from attnres.parallel.chunk import build_chunks
from attnres.parallel.plan import ChunkPlan, Trace, plan, trace
from attnres.parallel.schedule import even_cuts
from tests.depth import VARIANTS, variant_id

BATCH, TIME, DIM = 2, 3, 12
TOKENS = BATCH * TIME
CPU = torch.device("cpu")


@functools.cache
def traced(name: str, sublayers: int, output: torch.dtype = torch.float32, **options) -> Trace:
    with torch.device("meta"):
        connection = make_connection(name, DIM, sublayers, **options)
    return trace(connection, (BATCH, TIME, DIM), torch.float32, output)


def widths(name: str, sublayers: int, **options) -> list[int]:
    """How many new entries each site makes."""
    values = traced(name, sublayers, **options).values
    return [len(set(after) - set(before)) for before, after in itertools.pairwise(values)]


def sent_per_transition(chunks: list[ChunkPlan]) -> list[int]:
    """In units of one [batch, time, dim] in float32."""
    return [sum(held.entry.nbytes for held in chunk.received) // (TOKENS * DIM * 4) for chunk in chunks[1:]]


def test_what_stays_is_found_without_naming_a_connection():
    # AttnRes: the embedding and finished blocks stay, only the partial is new.
    assert [len(v) for v in traced("block", 6, block_size=3).values] == [1, 2, 2, 2, 3, 3, 3]
    assert widths("block", 6, block_size=3) == [1] * 6
    assert widths("full", 6) == [1] * 6
    # delta makes its stream and an output, and keeps the outputs; x0 keeps the embedding.
    assert widths("delta", 6) == [2] * 6
    assert [len(v) for v in traced("delta", 6).values] == [1, 2, 3, 4, 5, 6, 7]
    assert widths("x0", 6) == [1] * 6
    assert len(set(traced("x0", 6).values[0])) == 1  # (x, x) is one tensor
    assert widths("residual", 6) == widths("mhc", 6) == [1] * 6


def test_entries_have_the_shapes_and_dtypes_of_the_values():
    bf16 = traced("full", 2, output=torch.bfloat16).values[-1]
    assert [entry.dtype for entry in bf16] == [torch.float32, torch.bfloat16, torch.bfloat16]
    assert [entry.nbytes for entry in bf16] == [TOKENS * DIM * 4, TOKENS * DIM * 2, TOKENS * DIM * 2]
    assert traced("hc", 2, streams=3).values[1][0].shape == (BATCH, TIME, 3, DIM)


@pytest.mark.parametrize(("ranks", "virtual", "blocks"), [(2, 1, 1), (2, 4, 2), (3, 2, 1), (4, 2, 2)])
def test_block_transitions_match_the_formulas(ranks, virtual, blocks):
    """spec.md 8, for cuts at block boundaries; the embedding is a block that chunk 0 makes on top of its N_p."""
    chunks, size = ranks * virtual, 2
    sites = chunks * blocks * size
    values, cuts = traced("block", sites, block_size=size).values, even_cuts(sites, chunks)

    cached = sent_per_transition(plan(values, cuts, ranks))
    embedding = ranks - 1
    # The formula lets each later transition carry P N_p blocks; N_p of them the receiver made itself and is not sent.
    formula = ranks * (ranks - 1) // 2 * blocks + (virtual - 1) * ranks**2 * blocks
    assert sum(cached) == formula - (virtual - 1) * ranks * blocks + embedding
    # Chunks 1 .. P-1 see the embedding for the first time; from then on what the P - 1 other ranks made.
    assert cached == [min(c, ranks - 1) * blocks + (c < ranks) for c in range(1, chunks)]


KINDS = [("block", {"block_size": 3, "window": 2}), ("delta", {"gate": True}), ("x0", {}), ("denseformer", {})]


@pytest.mark.parametrize(
    "variant",
    [*KINDS, *(pytest.param(variant, marks=pytest.mark.slow) for variant in VARIANTS if variant not in KINDS)],
    ids=variant_id,
)
def test_every_chunk_has_what_it_reads(variant):
    for ranks, turned in itertools.product((1, 2, 3), (True, False)):
        replay(*variant, ranks, turned)


def replay(name: str, options: dict, ranks: int, turned: bool) -> None:
    """The transitions with sets: nothing is read, sent or returned that is not there; nothing is left over.

    turned: the chunks go forth and back over the ranks in a V, instead of round.
    """
    sites = 12
    values = traced(name, sites, **options).values
    draw = random.Random(f"{name} {options}")
    for count in [2 * ranks] if turned else range(ranks, sites + 1, ranks):
        cuts = sorted(draw.sample(range(1, sites), count - 1))
        rank_of = [min(c, count - 1 - c) if turned else c % ranks for c in range(count)]
        chunks = plan(values, cuts, ranks, rank_of if turned else None)
        there: list[set] = [set() for _ in range(ranks)]
        for index, chunk in enumerate(chunks):
            here = there[rank_of[index]]
            assert not here & {*chunk.received, *chunk.made}
            here |= set(chunk.received)
            first = chunk.sites.start
            if first:
                assert here >= set(chunk.inputs)
                assert tuple(chunk.inputs[p].entry for p in chunk.positions) == values[first]
            here |= set(chunk.made)
            assert here >= set(chunk.sent)
            if index and rank_of[index] == rank_of[index - 1]:
                assert not chunk.received  # nothing is sent where a V turns
            if index + 1 < count:
                following = chunks[index + 1]
                assert [h.entry for h in chunk.sent] == [h.entry for h in following.received]
                assert tuple(values[following.sites.start][p] for p in chunk.outputs) == tuple(
                    h.entry for h in chunk.made
                )
            here -= set(chunk.forgotten)
        assert not any(there)
        # No rank is sent an entry twice, or one that it made.
        for rank in range(ranks):
            own = [chunk for index, chunk in enumerate(chunks) if rank_of[index] == rank]
            had = [h.entry for chunk in own for h in (*chunk.received, *chunk.made)]
            assert len(had) == len(set(had))


@pytest.mark.parametrize(
    ("name", "chunks"),
    [
        *((name, 5) for name in ("block", "denseformer", "mhc")),
        *(pytest.param(name, chunks, marks=pytest.mark.slow) for name in connection_names() for chunks in (2,)),
    ],
)
def test_chunks_share_out_the_whole_model_bit_for_bit(name, chunks):
    config = TransformerConfig(vocab_size=7, dim=DIM, layers=4, heads=2, context=4, connection=name)
    whole = dict(Transformer(config, seed=5).named_parameters())
    traces = traced(name, config.sublayers)
    layout = plan(traces.values, even_cuts(config.sublayers, chunks), 1)
    found: dict[str, torch.Tensor] = {}
    for rank in range(2):
        for chunk in build_chunks(config, 5, layout, traces.users, range(rank, chunks, 2), CPU):
            own = dict(chunk.named_parameters())
            assert not own.keys() & found.keys()
            assert not any(parameter.is_meta for parameter in own.values())
            sublayers = {int(key.split(".")[1]) for key in own if key.startswith("sublayers.")}
            assert sublayers == set(chunk.plan.sites)
            found |= own
    assert found.keys() == whole.keys()
    assert all(torch.equal(found[key], whole[key]) for key in whole)


def test_depth_is_cut_as_evenly_as_whole_sublayers_allow():
    assert even_cuts(10, 4) == [2, 5, 7] and even_cuts(7, 7) == [1, 2, 3, 4, 5, 6]


CONFIG = TransformerConfig(vocab_size=7, dim=DIM, layers=4, heads=2, context=4)


def test_chunks_under_autocast_make_what_the_plan_says():
    """Experts are added up in float32, and the plan says bfloat16 of every sublayer."""
    pytest.importorskip("transformers")
    config = replace(CONFIG, backbone="qwen3_moe", connection="full")
    traces = traced("full", config.sublayers, torch.bfloat16)
    held: dict = {}
    layout = plan(traces.values, even_cuts(config.sublayers, 4), 4)
    for chunk in build_chunks(config, 0, layout, traces.users, range(4), CPU):
        chunk.autocast = torch.bfloat16
        read = [held[key.entry] for key in chunk.plan.inputs]
        made = chunk(*(read or [torch.zeros(BATCH, TIME, dtype=torch.int64)]))
        for key, tensor in zip(chunk.plan.made, made, strict=False):  # the last one makes logits
            assert (tensor.dtype, tuple(tensor.shape)) == (key.entry.dtype, key.entry.shape)
            held[key.entry] = tensor.detach()
