"""A pipeline schedule on paper: when each rank computes, and how long it waits for what others send.

The order of work is that of torch's schedules (`torch.distributed.pipelining`); the times are the caller's. The model:
a rank does one thing at a time, in its schedule's order; sending takes none of its time, and between two ranks one
message at a time travels in each direction. The result is a lower bound for that order and not a prediction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from attnres.parallel.schedule import check_schedule

Kind = Literal["forward", "backward", "input gradient", "weight gradient"]

# What each kind takes, in units of the chunk's forward pass: two products of a matrix's size in the backward pass for
# one in the forward pass.
EFFORT: dict[Kind, float] = {"forward": 1, "backward": 2, "input gradient": 1, "weight gradient": 1}


class Action(NamedTuple):
    """One piece of a rank's work."""

    kind: Kind
    chunk: int
    micro_batch: int


@dataclass(frozen=True)
class Timeline:
    """One training step: the actions of each rank in their order, and when they began and ended."""

    actions: list[list[Action]]
    starts: list[list[float]]
    ends: list[list[float]]

    @property
    def seconds(self) -> float:
        return max(ends[-1] for ends in self.ends)

    @property
    def busy(self) -> float:
        """The share of the step in which a rank computes, on average."""
        work = sum(map(sum, self.ends)) - sum(map(sum, self.starts))
        return work / (len(self.ends) * self.seconds)


def schedule_actions(schedule: str, pipeline: int, virtual: int, micro_batches: int) -> list[list[Action]]:
    """What each rank does, in order, under the schedule of that name. Chunk c is on rank c mod P.

    Raises:
        UsageError: the schedule does not take these numbers.
    """
    check_schedule(schedule, pipeline, virtual, micro_batches)
    if schedule == "1f1b":
        return [_one_forward_one_backward(rank, pipeline, micro_batches) for rank in range(pipeline)]
    splits = schedule == "zero-bubble"
    return [_interleaved(rank, pipeline, virtual, micro_batches, splits) for rank in range(pipeline)]


def _one_forward_one_backward(rank: int, pipeline: int, micro_batches: int) -> list[Action]:
    """The order in which torch's Schedule1F1B runs. (Its own list of it is wrong on the last rank, in torch 2.13.)"""
    ahead = min(micro_batches, pipeline - rank)
    forward = [Action("forward", rank, number) for number in range(micro_batches)]
    backward = [Action("backward", rank, number) for number in range(micro_batches)]
    steady = [action for pair in zip(backward, forward[ahead:], strict=False) for action in pair]
    return [*forward[:ahead], *steady, *backward[micro_batches - ahead :]]


def _interleaved(rank: int, pipeline: int, virtual: int, micro_batches: int, splits: bool) -> list[Action]:
    """The order of torch's ScheduleInterleaved1F1B or, where the backward pass `splits`, ScheduleInterleavedZeroBubble.

    (torch plans every message too before it tells its order: 15 s where this takes 1 s.)
    """
    in_a_round = micro_batches // max(1, micro_batches // pipeline)  # micro-batches of a chunk, one after the other

    def actions(kind: Kind, chunks: list[int]) -> list[Action]:
        return [
            Action(kind, chunk, number)
            for first in range(0, micro_batches, in_a_round)
            for chunk in chunks
            for number in range(first, first + in_a_round)
        ]

    chunks = list(range(rank, pipeline * virtual, pipeline))
    forward = actions("forward", chunks)
    backward = actions("input gradient" if splits else "backward", chunks[::-1])
    weights = actions("weight gradient", chunks[::-1]) if splits else []
    ahead = min((virtual - 1) * in_a_round + (1 if splits else 2) * (pipeline - 1 - rank), len(forward))
    order = forward[:ahead]
    for step, action in enumerate(backward):
        order += [*forward[ahead + step : ahead + step + 1], action]
        if step >= rank:
            order += weights[step - rank : step - rank + 1]
    return order + weights[max(0, len(backward) - rank) :]


def simulate(ranks: list[list[Action]], forward: Sequence[float], transfer: Sequence[float]) -> Timeline:
    """The timeline of one step.

    ranks: from `schedule_actions`. forward: seconds of each chunk's forward pass for one micro-batch; the other kinds
    take EFFORT times as long. transfer: seconds that each chunk's input travels to it (the first is not used); in the
    backward pass its gradient travels back as long.
    """
    last, pipeline = len(forward) - 1, len(ranks)
    micro_batches = 1 + max(action.micro_batch for action in ranks[0])
    # When an action's result has arrived: by chunk and micro-batch, of the forward and of the backward pass.
    arrived: list[list[float | None]] = [[None] * (len(forward) * micro_batches) for _ in range(2)]
    onwards, back = [0.0] * pipeline, [0.0] * pipeline  # when a rank's link to the next and to the one before is free
    link_free = onwards, onwards if pipeline == 2 else back  # two ranks have one link each
    step = Timeline(ranks, [[] for _ in ranks], [[] for _ in ranks])
    done = [0] * pipeline
    free = [0.0] * pipeline
    moved = True
    while moved:
        moved = False
        for rank, actions in enumerate(ranks):
            starts, ends, now = step.starts[rank], step.ends[rank], free[rank]
            for position in range(done[rank], len(actions)):
                kind, chunk, number = actions[position]
                backward = kind != "forward"
                results, place = arrived[backward], chunk * micro_batches + number
                first = kind == "weight gradient" or chunk == (last if backward else 0)
                ready = 0.0 if first else results[place + micro_batches if backward else place - micro_batches]
                if ready is None:
                    break
                start = max(now, ready)
                now = start + forward[chunk] * EFFORT[kind]
                starts.append(start)
                ends.append(now)
                if kind == "weight gradient" or chunk == (0 if backward else last):
                    continue
                if pipeline == 1:
                    results[place] = now
                    continue
                link = link_free[backward]
                results[place] = link[rank] = max(now, link[rank]) + transfer[chunk if backward else chunk + 1]
            moved = moved or len(ends) > done[rank]
            done[rank], free[rank] = len(ends), now
    assert done == list(map(len, ranks)), "the schedule waits for itself"
    return step
