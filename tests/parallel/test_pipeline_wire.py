"""What a pipeline sends and holds: bytes by transition, and sends in flight."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from tests.parallel.cases import BATCH, CONTEXT, DIM, Case, compare, make_pipeline, run_case


def test_bytes_that_are_sent_are_the_formulas(ranks):
    """spec.md 8. A step after another: what is kept between them would be sent no more."""
    P, V, M, blocks, size = 2, 3, 2, 1, 2
    options = (("block_size", size),)
    layers = P * V * blocks * size // 2
    case = Case(P, V, "interleaved-1f1b", M, "block", options, layers, steps=2)
    outcomes = ranks.run(run_case, case, ranks=P)
    compare(case, outcomes, 1e-11)
    sent = sum((outcome.sent for outcome in outcomes), Counter())
    # One entry of all micro-batches, in float64; the second step is a token shorter than the first.
    unit = M * BATCH * (CONTEXT - 1) * DIM * 8
    for direction in ("forward", "backward"):
        per_transition = [sent[c, direction] / unit for c in range(1, P * V)]
        assert per_transition == [min(c, P - 1) * blocks + (c < P) for c in range(1, P * V)]
        formula = P * (P - 1) // 2 * blocks + (V - 1) * P**2 * blocks
        own_blocks, embedding = (V - 1) * P * blocks, P - 1
        assert sum(per_transition) == formula - own_blocks + embedding


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


def test_what_was_sent_is_let_go_before_the_step_ends(ranks):
    """torch's schedules of several chunks keep every send until then: three times as much for three times the work."""
    most = [
        ranks.run(most_in_flight, Case(2, 2, "interleaved-1f1b", micro_batches, "block", layers=4), ranks=2)
        for micro_batches in (4, 12)
    ]
    for (few, all_of_few), (many, all_of_many) in zip(*most, strict=True):
        assert all_of_many == 3 * all_of_few and many < 2 * few
