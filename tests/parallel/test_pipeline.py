"""Pipelines on real processes against the one-process model: losses, every gradient, bytes on the wire, the cache."""

from __future__ import annotations

import os
import signal
from collections import Counter
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from attnres.connections import connection_names
from attnres.errors import UsageError
from attnres.model import Transformer
from tests.parallel.cases import (
    BATCH,
    CONTEXT,
    DIM,
    SEED,
    Case,
    Outcome,
    compare,
    make_pipeline,
    randomise_connection,
    reference,
    run_case,
)
from tests.parallel.ranks import Ranks


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    pool = Ranks(4, tmp_path_factory.mktemp("ranks"))
    yield pool
    pool.stop()


LAYOUTS = [
    {"ranks": 2, "schedule": "1f1b", "micro_batches": 3},
    {"ranks": 2, "virtual": 2, "schedule": "interleaved-1f1b", "micro_batches": 3},
    {"ranks": 3, "virtual": 2, "schedule": "zero-bubble", "micro_batches": 5},
]


def each_layout(layouts=LAYOUTS):
    return pytest.mark.parametrize("layout", layouts, ids=lambda layout: layout["schedule"])


@each_layout()
@pytest.mark.parametrize("name", connection_names())
def test_every_connection_on_every_schedule(ranks, name, layout):
    case = Case(connection=name, layers=4, **layout)
    compare(case, ranks.run(run_case, case, ranks=case.ranks), 1e-11)


OPTIONS = [
    {"query": "input", "heads": 3},
    {"mixing": "static"},
    {"weighting": "sigmoid", "key_norm": False},
    {"window": 2},
    {"reads": "qkv-gate-up"},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_options_of_attnres_under_zero_bubble(ranks, options):
    """Its two halves of the backward pass go different ways through each option's graph."""
    case = Case(3, 2, "zero-bubble", 3, "block", (("block_size", 3), *options.items()))
    compare(case, ranks.run(run_case, case, ranks=3), 1e-11)


GRID = [(P, V, True) for P in (1, 2, 3, 4) for V in (1, 2, 3, 4)]


NAIVE = [(1, 2, False), (2, 1, False), (2, 3, False), (3, 2, False), (4, 4, False)]


@pytest.mark.parametrize(("ranks_", "virtual", "cached"), GRID + NAIVE)
def test_any_number_of_ranks_and_virtual_stages(ranks, ranks_, virtual, cached):
    """16 to 18 sublayers in blocks of 3: cuts fall inside blocks, and the last block is not full."""
    schedule = "zero-bubble" if (ranks_ + virtual) % 2 else "interleaved-1f1b"
    odd = {1: 1, 2: 3, 3: 5, 4: 7}[ranks_]
    case = Case(ranks_, virtual, schedule, odd, "block", (("block_size", 3),), layers=8, cache=cached)
    outcomes = ranks.run(run_case, case, ranks=ranks_)
    compare(case, outcomes, 1e-11)
    if ranks_ == 1:
        assert not outcomes[0].sent


@pytest.mark.parametrize("cuts", [(1, 2, 9), (2, 5, 8)], ids=str)
@pytest.mark.parametrize("name", ["block", "delta", "x0", "denseformer"])
def test_stages_are_cut_anywhere(ranks, name, cuts):
    case = Case(2, 2, "interleaved-1f1b", 4, name, cuts=cuts)
    compare(case, ranks.run(run_case, case, ranks=2), 1e-11)


@each_layout()
@pytest.mark.parametrize("name", ["block", "mhc"])
def test_activation_checkpointing(ranks, name, layout):
    case = Case(connection=name, checkpointing=True, **layout)
    compare(case, ranks.run(run_case, case, ranks=case.ranks), 1e-11)


@each_layout()
@pytest.mark.parametrize("steps", [1, 2])
def test_both_ends_have_the_whole_gradient_of_a_tied_embedding(ranks, layout, steps):
    case = Case(tied=True, layers=4, steps=steps, **layout)
    outcomes = ranks.run(run_case, case, ranks=case.ranks)
    compare(case, outcomes, 1e-11)
    assert sum("embedding.weight" in outcome.gradients for outcome in outcomes) == 2


def run_compiled(group: dist.ProcessGroup, case: Case) -> Outcome:
    """`run_case` without the machine code, which takes longer; what is compiled, and into which graphs, is the same."""
    whole, torch.compile = torch.compile, partial(torch.compile, backend="aot_eager")
    try:
        return run_case(group, case)
    finally:
        torch.compile = whole


@each_layout()
@pytest.mark.parametrize("checkpointing", [False, True], ids=["", "checkpointing"])
def test_compiled_sublayers(ranks, checkpointing, layout):
    case = Case(compile=True, checkpointing=checkpointing, layers=4, **layout)
    compare(case, ranks.run(run_compiled, case, ranks=case.ranks), 1e-11)


def forward_calls(group: dist.ProcessGroup, case: Case) -> list[int]:
    pipeline, calls = make_pipeline(group, case), []
    for chunk in pipeline.chunks:
        chunk.register_forward_hook(lambda module, *_: calls.append(module.plan.sites.start))
    pipeline.forward_backward(case.batches(0))
    return calls


def test_zero_bubble_checkpoints_whole_chunks(ranks):
    """All but the last, whose backward pass follows its forward pass at once, run forward twice."""
    case = Case(2, 2, "zero-bubble", 2, layers=4, checkpointing=True)
    calls = Counter(chain.from_iterable(ranks.run(forward_calls, case, ranks=2)))
    assert calls == {0: 4, 2: 4, 4: 4, 6: 2}


def gradients_with_dropout(group: dist.ProcessGroup, case: Case) -> dict[str, Tensor]:
    pipeline = make_pipeline(group, case)
    for chunk in pipeline.chunks:
        chunk.train()
    torch.manual_seed(7)
    pipeline.forward_backward(case.batches(0))
    return {name: parameter.grad for name, parameter in pipeline.named_parameters() if parameter.grad is not None}


@each_layout(LAYOUTS[1:])
def test_what_is_recomputed_draws_what_it_drew(ranks, layout):
    pytest.importorskip("transformers")
    dropout = (("attention_dropout", 0.5),)
    case = Case(dtype=torch.float32, layers=4, backbone="llama", backbone_options=dropout, **layout)
    plain = ranks.run(gradients_with_dropout, case, ranks=case.ranks)
    again = ranks.run(gradients_with_dropout, replace(case, checkpointing=True), ranks=case.ranks)
    none = ranks.run(gradients_with_dropout, replace(case, backbone_options=()), ranks=case.ranks)
    for expected, found, other in zip(plain, again, none, strict=True):
        assert expected.keys() == found.keys()
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
        assert any((expected[name] - other[name]).abs().max() > 1e-4 for name in expected), "dropout does something"


@pytest.mark.parametrize(
    ("backbone", "options"),
    [("qwen3_moe", {}), ("kimi_linear", {"linear_num_heads": 2, "linear_head_dim": 8})],  # theirs: 32 of 128
)
def test_experts_under_autocast(ranks, backbone, options):
    """They are added up in float32, and the plan says bfloat16 of every sublayer."""
    pytest.importorskip("transformers")
    autocast = {"dtype": torch.float32, "precision": torch.bfloat16}
    model = {"layers": 4, "backbone": backbone, "backbone_options": tuple(options.items())}
    case = Case(2, 2, "interleaved-1f1b", 2, "block", **model, **autocast)
    outcomes = ranks.run(run_case, case, ranks=2)
    assert outcomes[0].losses[0] == pytest.approx(reference(case)[0][0], rel=2e-2)


@each_layout()
def test_float32_is_bitwise_where_the_order_of_sums_is_the_same(ranks, layout):
    """A stream has one reader per site, so cutting it changes no sum."""
    for name in ("residual", "hc", "highway"):
        case = Case(connection=name, dtype=torch.float32, **layout)
        outcomes = ranks.run(run_case, case, ranks=case.ranks)
        compare(case, outcomes, 0.0 if layout["schedule"] != "zero-bubble" else 1e-6)
        assert [outcome.losses for outcome in outcomes] == [reference(case)[0]] * case.ranks


@each_layout(LAYOUTS[1:])
@pytest.mark.parametrize("name", ["block", "full", "delta"])
def test_float32_gradients_within_a_millionth(ranks, name, layout):
    """Relative to the whole gradient: each connection adds up the shares of a source in another order when cut.

    In float32 the fused kernels run, where one autograd node has the queries of several sites.
    """
    case = Case(connection=name, dtype=torch.float32, **layout)
    outcomes = ranks.run(run_case, case, ranks=case.ranks)
    compare(case, outcomes, 1e-5)
    found = {name: gradient for outcome in outcomes for name, gradient in outcome.gradients.items()}
    pairs = [(found[name], g) for name, g in reference(case)[1].items() if g is not None]
    squares = torch.tensor([[(a - b).square().sum(), b.square().sum()] for a, b in pairs]).sum(0)
    assert (squares[0] / squares[1]).sqrt() < 1e-6


def test_autocast_sends_the_dtypes_of_the_one_process_model(ranks):
    """The embedding stays in float32, blocks are in bfloat16; an entry's dtype is part of the plan."""
    case = Case(2, 2, "interleaved-1f1b", 4, "block", dtype=torch.float32, precision=torch.bfloat16)
    compare(case, ranks.run(run_case, case, ranks=2), 5e-2)
    full = replace(case, connection="residual")
    compare(full, ranks.run(run_case, full, ranks=2), 1e-6)


@pytest.mark.parametrize("schedule", ["interleaved-1f1b", "zero-bubble"])
@pytest.mark.parametrize("cached", [True, False], ids=["cache", "naive"])
def test_bytes_on_the_wire_are_the_formulas(ranks, schedule, cached):
    """SPEC.md 8, counted under torch.distributed.isend. Two steps: the first also carries torch's own greetings."""
    P, V, M, blocks, size = 2, 3, 4, 1, 2
    case = Case(P, V, schedule, M, "block", (("block_size", size),), layers=P * V * blocks * size // 2, cache=cached)
    case = replace(case, steps=3)  # the third is as long as the first
    outcomes = ranks.run(run_case, case, ranks=P)
    compare(case, outcomes, 1e-11)
    sent = sum((outcome.sent for outcome in outcomes), Counter())
    assert [outcome.wire for outcome in outcomes] == [sum(outcome.sent.values()) for outcome in outcomes]

    C, unit = P * V, M * BATCH * CONTEXT * DIM * 8  # one entry of all micro-batches, in float64
    for direction in ("forward", "backward"):
        per_transition = [sent[c, direction] // unit for c in range(1, C)]
        if cached:
            assert per_transition == [min(c, P - 1) * blocks + (c < P) for c in range(1, C)]
            formula = P * (P - 1) // 2 * blocks + (V - 1) * P**2 * blocks
            own_blocks, embedding = (V - 1) * P * blocks, P - 1
            assert sum(per_transition) == formula - own_blocks + embedding
        else:
            assert per_transition == [1 + c * blocks for c in range(1, C)]
            assert sum(per_transition) == C * (C - 1) // 2 * blocks + (C - 1)
        assert sum(sent[c, direction] for c in range(1, C)) == sum(per_transition) * unit


def most_in_flight(group: dist.ProcessGroup, case: Case) -> tuple[int, int]:
    """Bytes of sent tensors that were alive at once, at most, when another was sent; and of all that were sent."""
    pipeline = make_pipeline(group, case)
    pipeline.forward_backward(case.batches(0))
    sent: list[tuple[StorageWeakRef, int]] = []
    most, original = 0, dist.isend

    def noted(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        nonlocal most
        sent.append((StorageWeakRef(tensor.untyped_storage()), tensor.nbytes))
        most = max(most, sum(size for storage, size in sent if not storage.expired()))
        return original(tensor, *args, **kwargs)

    dist.isend = dist.distributed_c10d.isend = noted
    try:
        pipeline.forward_backward(case.batches(0))
    finally:
        dist.isend = dist.distributed_c10d.isend = original
    return most, sum(size for _, size in sent)


@pytest.mark.parametrize("schedule", ["interleaved-1f1b", "zero-bubble"])
def test_what_was_sent_is_let_go_before_the_step_ends(ranks, schedule):
    """torch's schedules of several chunks keep every send until then."""
    most = [
        ranks.run(most_in_flight, Case(2, 2, schedule, micro_batches, "block", layers=4), ranks=2)
        for micro_batches in (8, 24)
    ]
    for (few, all_of_few), (many, all_of_many) in zip(*most, strict=True):
        assert all_of_many == 3 * all_of_few and many == few


def test_an_open_partial_comes_on_top(ranks):
    """Cut inside each block: a transition carries the open partial besides the finished blocks."""
    case = Case(2, 2, "interleaved-1f1b", 2, "block", (("block_size", 4),), layers=8, cuts=(2, 6, 10))
    outcomes = ranks.run(run_case, case, ranks=2)
    compare(case, outcomes, 1e-11)
    sent = sum((outcome.sent for outcome in outcomes), Counter())
    unit = 2 * BATCH * CONTEXT * DIM * 8
    # To chunk 1: embedding, partial. To chunk 2: the block that chunk 1 finished, partial. To chunk 3: likewise.
    assert [sent[c, "forward"] // unit for c in (1, 2, 3)] == [2, 2, 2]


def test_the_caches_peak(ranks):
    """With blocks at the cuts, one chunk per rank and 1F1B: what a chunk reads and makes, and never more."""
    case = Case(4, 1, "1f1b", 4, "block", (("block_size", 2),), layers=8, steps=2)
    case = replace(case, steps=3)
    outcomes = ranks.run(run_case, case, ranks=4)
    compare(case, outcomes, 1e-11)
    entry = BATCH * CONTEXT * DIM * 8
    # Blocks 0 (embedding) .. 2 (rank + 1): rank r reads 1 + 2r of them and makes two. Its backward pass holds as many
    # gradients and no tensors. Rank 0 reads tokens and makes the embedding as well; the last passes nothing on.
    assert [outcome.cache_peak // entry for outcome in outcomes] == [3, 5, 7, 7]


def evaluate(group: dist.ProcessGroup, case: Case) -> list[Tensor]:
    pipeline = make_pipeline(group, case)
    before = pipeline.token_losses(case.batches(1)[0])
    pipeline.forward_backward(case.batches(0))
    after = pipeline.token_losses(case.batches(1)[0])
    assert pipeline.cache.bytes == 0
    return [before, after]


@each_layout(LAYOUTS[1:])
def test_token_losses_between_steps(ranks, layout):
    case = Case(connection="block", dtype=torch.float32, **layout)
    model = Transformer(case.config, SEED)
    randomise_connection(model)
    tokens = case.batches(1)[0]
    expected = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten(), reduction="none")
    for before, after in ranks.run(evaluate, case, ranks=case.ranks):
        torch.testing.assert_close(before, expected.detach(), rtol=1e-5, atol=1e-5)
        assert torch.equal(before, after)


def bad_steps(group: dist.ProcessGroup, case: Case) -> list[str]:
    pipeline = make_pipeline(group, case)
    good = case.batches(0)
    long = [torch.zeros(BATCH, CONTEXT + 2, dtype=torch.int64)] * len(good)
    messages = []
    for batches in (good[1:], [*good[1:], good[0][:1]], long):
        try:
            pipeline.forward_backward(batches)
        except UsageError as error:
            messages.append(str(error))
    return [*messages, str(pipeline.forward_backward(good))]  # nothing was sent, so it still works


def test_a_batch_that_does_not_fit_is_refused_on_every_rank(ranks):
    case = Case(2, micro_batches=2)
    for messages in ranks.run(bad_steps, case, ranks=2):
        assert "2 micro-batches of one shape, not [2, 7]" in messages[0]
        assert "2 micro-batches of one shape, not [2, 7], [1, 7]" in messages[1]
        assert "7 tokens do not fit the model's context of 6" in messages[2]
        assert float(messages[3]) == pytest.approx(reference(case)[0][0])


def die(group: dist.ProcessGroup, case: Case, how: str) -> None:
    pipeline = make_pipeline(group, case)
    pipeline.forward_backward(case.batches(0))
    if dist.get_rank() == 1:
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        raise ValueError("on purpose")
    pipeline.forward_backward(case.batches(0))


@pytest.mark.parametrize("how", ["kill", "raise"])
def test_a_rank_that_fails_ends_the_others_within_seconds(tmp_path, how):
    """They fail because a connection closes, long before the group's time limit."""
    pool = Ranks(3, tmp_path)
    with pytest.raises(RuntimeError) as error:
        pool.run(die, Case(3, 2, "interleaved-1f1b", 3), how, ranks=3)
    message = str(error.value)
    assert ("rank 1 is gone" if how == "kill" else "on purpose") in message
    assert "rank 0:" in message and "rank 2:" in message
    assert "waiting" not in message  # ranks.GRACE
