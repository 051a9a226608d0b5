"""Pipelines on real processes against the model in one process: losses and every gradient, in float64."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from attnres.model import Transformer
from tests.parallel.cases import (
    SEED,
    Case,
    Outcome,
    compare,
    make_pipeline,
    randomise_connection,
    run_case,
)
from tests.parallel.ranks import Ranks

ONE_CHUNK = {"ranks": 2, "schedule": "1f1b", "micro_batches": 3}
INTERLEAVED = {"ranks": 2, "virtual": 2, "schedule": "interleaved-1f1b", "micro_batches": 3}
ZERO_BUBBLE = {"ranks": 3, "virtual": 2, "schedule": "zero-bubble", "micro_batches": 4}
SCHEDULES = {layout["schedule"]: layout for layout in (ONE_CHUNK, INTERLEAVED, ZERO_BUBBLE)}

ROUNDING = 1e-11
"""Of float64, relative to a gradient's largest element; what is left out or counted twice is a hundredth or more."""


def check(ranks: Ranks, case: Case, run=run_case, tolerance: float = ROUNDING) -> list[Outcome]:
    outcomes = ranks.run(run, case, ranks=case.ranks)
    compare(case, outcomes, tolerance)
    return outcomes


# One of each way to carry depth and to cut it; the plan's tests have every connection.
FAMILIES = [
    ("1f1b", "x0", {}),  # one tensor is two entries of the values
    ("1f1b", "block", {"block_size": 3}),  # cuts fall inside blocks
    ("interleaved-1f1b", "denseformer", {}),  # parameters per layer, not per site
    # Two halves of a backward pass, which go different ways through each graph.
    ("zero-bubble", "hc", {}),
    ("zero-bubble", "block", {"block_size": 3, "query": "input", "heads": 3, "reads": "qkv-gate-up"}),
]


@pytest.mark.parametrize(
    ("schedule", "name", "options"),
    FAMILIES,
    ids=str,
)
def test_every_gradient_is_that_of_one_process(ranks, schedule, name, options):
    check(ranks, Case(connection=name, options=tuple(options.items()), layers=4, **SCHEDULES[schedule]))


@pytest.mark.parametrize(("ranks_", "virtual"), [(1, 3), (3, 2)])
def test_any_number_of_ranks_and_virtual_stages(ranks, ranks_, virtual):
    """16 sublayers in blocks of 3: cuts fall inside blocks, and the last block is not full."""
    schedule = "zero-bubble" if (ranks_ + virtual) % 2 else "interleaved-1f1b"
    batches = {1: 1, 3: 4}[ranks_]
    outcomes = check(ranks, Case(ranks_, virtual, schedule, batches, "block", (("block_size", 3),), 8))
    if ranks_ == 1:
        assert not outcomes[0].sent.total()


def test_stages_are_recomputed(ranks):
    check(ranks, Case(2, 2, "interleaved-1f1b", 4, "delta", checkpointing=True))


def test_both_ends_have_the_whole_gradient_of_a_tied_embedding(ranks):
    """Of the second step alone what that one adds: the first one's sum is not exchanged again."""
    outcomes = check(ranks, Case(tied=True, layers=4, steps=2, **INTERLEAVED))
    assert sum("embedding.weight" in outcome.gradients for outcome in outcomes) == 2


def test_float32_gradients_to_rounding(ranks):
    """In float32 the fused kernels run, where one autograd node has the queries of several sites.

    A cut adds up the shares of a source in another order: some units of 6e-8 for each of the 10 sites.
    """
    check(ranks, Case(connection="block", dtype=torch.float32, **ZERO_BUBBLE), tolerance=1e-4)


def test_autocast_sends_the_dtypes_of_the_one_process_model(ranks):
    """The embedding stays in float32, blocks are in bfloat16; a stage refuses what is not of the plan's dtype."""
    case = Case(2, 2, "interleaved-1f1b", 4, "block", dtype=torch.float32, precision=torch.bfloat16)
    check(ranks, case, tolerance=0.2)  # 50 units of bfloat16, whose sums of shares are rounded in another order


def evaluate(group: dist.ProcessGroup, case: Case) -> list[Tensor]:
    pipeline = make_pipeline(group, case)
    before = pipeline.token_losses(case.batches(1)[0])
    pipeline.forward_backward(case.batches(0))
    after = pipeline.token_losses(case.batches(1)[0])
    assert pipeline.cache.empty
    return [before, after]


def test_token_losses_between_steps(ranks):
    case = Case(connection="block", dtype=torch.float32, **ZERO_BUBBLE)
    model = Transformer(case.config, SEED)
    randomise_connection(model)
    tokens = case.batches(1)[0]
    expected = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten(), reduction="none")
    for before, after in ranks.run(evaluate, case, ranks=case.ranks):
        torch.testing.assert_close(before, expected.detach(), rtol=1e-5, atol=1e-5)
        assert torch.equal(before, after)
