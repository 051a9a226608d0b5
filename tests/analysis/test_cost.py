"""The cost model against counting, against a model's own values, and against what is known of the schedules."""

from fractions import Fraction
from itertools import pairwise, product
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch
from torch.distributed.pipelining import schedules

from attnres.analysis.cost import (
    counted_transfers,
    formula_transfers,
)
from attnres.analysis.timeline import EFFORT, Action, schedule_actions, simulate
from attnres.cli import main
from attnres.connections import make_connection
from attnres.parallel.schedule import chunk_sites, even_cuts


def test_formulas_are_the_sum_of_their_transitions():
    for p, v, blocks in product(range(1, 9), range(1, 6), (Fraction(1, 4), Fraction(1), Fraction(3))):
        transfers, chunks = formula_transfers(p, v, blocks), p * v
        assert sum(transfers.naive) == chunks * (chunks - 1) // 2 * blocks
        assert sum(transfers.cached) == (p * (p - 1) // 2 + (v - 1) * p**2) * blocks


@pytest.mark.parametrize(("pipeline", "virtual", "block_size"), [(2, 3, 1), (4, 2, 4)])
def test_counted_is_what_the_connections_values_are(pipeline, virtual, block_size):
    """Run the connection; a tensor that the receiving rank has held before need not be sent again."""
    connection = make_connection("block", dim=4, sublayers=26, block_size=block_size)
    sites = chunk_sites(26, even_cuts(26, pipeline * virtual))
    held: list[dict[int, torch.Tensor]] = [{} for _ in range(pipeline)]
    values = connection.start(torch.randn(2, 4))
    naive, cached = [], []
    for chunk, of_chunk in enumerate(sites):
        here = held[chunk % pipeline]
        if chunk:
            naive.append(len(values))
            cached.append(sum(id(tensor) not in here for tensor in values))
        here |= {id(tensor): tensor for tensor in values}
        for site in of_chunk:
            values = connection.scatter(values, None, site, values[0], torch.randn(2, 4))
            here |= {id(tensor): tensor for tensor in values}
    counted = counted_transfers(sites, block_size, pipeline)
    assert (counted.naive, counted.cached) == (naive, cached)


class Span(NamedTuple):
    """When an action ran."""

    action: Action
    start: float
    end: float


@pytest.mark.parametrize(("schedule", "virtual"), [("1f1b", 1), ("interleaved-1f1b", 3), ("zero-bubble", 2)])
def test_a_timeline_respects_every_dependency(schedule, virtual):
    pipeline, micro_batches = 4, 8
    chunks = pipeline * virtual
    forward = torch.rand(chunks).tolist()
    transfer = torch.rand(chunks).tolist()
    step = simulate(schedule_actions(schedule, pipeline, virtual, micro_batches), forward, transfer)
    ranks = [list(map(Span, *rank)) for rank in zip(step.actions, step.starts, step.ends, strict=True)]
    ran = {span.action: span for spans in ranks for span in spans}
    kinds = {action.kind for action in ran}
    assert len(ran) == chunks * micro_batches * len(kinds)
    assert kinds == (
        {"forward", "input gradient", "weight gradient"} if schedule == "zero-bubble" else {"forward", "backward"}
    )
    for rank, spans in enumerate(ranks):
        assert all(one.end <= other.start for one, other in pairwise(spans))
        assert all(span.action.chunk % pipeline == rank for span in spans)
    for action, span in ran.items():
        assert span.end - span.start == pytest.approx(forward[action.chunk] * EFFORT[action.kind])
        if action.kind == "weight gradient":
            assert ran[action._replace(kind="input gradient")].end <= span.start
        elif action.kind == "forward" and action.chunk:
            assert ran[action._replace(chunk=action.chunk - 1)].end + transfer[action.chunk] <= span.start + 1e-9
        elif action.kind != "forward" and action.chunk < chunks - 1:
            assert ran[action._replace(chunk=action.chunk + 1)].end + transfer[action.chunk + 1] <= span.start + 1e-9


@pytest.mark.parametrize(("pipeline", "virtual", "micro_batches"), [(3, 1, 9), (4, 3, 10)])
def test_orders_are_those_of_torchs_schedules(pipeline, virtual, micro_batches):
    kinds = {"F": "forward", "B": "backward", "I": "input gradient", "W": "weight gradient"}
    stage = SimpleNamespace(group_rank=0, group_size=pipeline, num_stages=pipeline * virtual, submod=None)
    for name, cls in (
        ("interleaved-1f1b", schedules.ScheduleInterleaved1F1B),
        ("zero-bubble", schedules.ScheduleInterleavedZeroBubble),
    ):
        theirs = cls([stage] * virtual, micro_batches).pipeline_order
        for rank, ours in enumerate(schedule_actions(name, pipeline, virtual, micro_batches)):
            order = [a for a in theirs[rank] if a is not None and a.computation_type.value in kinds]
            assert ours == [(kinds[a.computation_type.value], a.stage_index, a.microbatch_index) for a in order]


def test_one_link_carries_one_message_at_a_time():
    actions = schedule_actions("1f1b", 2, 1, 2)
    step = simulate(actions, [1.0, 1.0], [0.0, 5.0])
    assert step.starts[1] == [6.0, 7.0, 11.0, 12.0]


def test_the_command_prints_the_paper(capsys):
    assert main(["cost", "--micro-batches", "8"]) == 0
    printed = capsys.readouterr().out
    assert "124 = 7.28 GB" in printed and "55 = 3.23 GB" in printed and "34.01" in printed
    assert "C = 32 chunks, each of N_p = 0.25 blocks" in " ".join(printed.split())
    ratios = [
        float(line.split()[-1]) for line in printed.splitlines() if line.split()[:1] in (["residual"], ["block,"])
    ]
    assert len(ratios) > 3 and 1 == ratios[-3] <= ratios[-2] <= ratios[-1], "plain, cached, naive"
