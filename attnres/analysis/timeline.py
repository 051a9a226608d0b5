"""A pipeline schedule on paper: when each rank computes, and how long it waits for what others send.

The order of work is that of torch's schedules (`torch.distributed.pipelining`); the times are the caller's. The model:
a rank does one thing at a time, in its schedule's order; sending takes no time of the ranks', and between two ranks one
message at a time travels in each direction. So it is the best that a runtime can do with that order, not a prediction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Literal, NamedTuple

from attnres.parallel.schedule import check_schedule

Kind = Literal["forward", "backward", "input gradient", "weight gradient"]

# What each kind takes, in units of the chunk's forward pass: two products of a matrix's size in the backward pass for
# one in the forward pass.
EFFORT: dict[Kind, float] = {"forward": 1, "backward": 2, "input gradient": 1, "weight gradient": 1}

KINDS: dict[str, Kind] = {"F": "forward", "B": "backward", "I": "input gradient", "W": "weight gradient"}


class Action(NamedTuple):
    """One piece of a rank's work."""

    kind: Kind
    chunk: int
    micro_batch: int


class Span(NamedTuple):
    """When an action ran, in seconds."""

    action: Action
    start: float
    end: float


@dataclass(frozen=True)
class Timeline:
    """One training step: the spans of each rank in their order."""

    ranks: list[list[Span]]

    @property
    def seconds(self) -> float:
        return max(spans[-1].end for spans in self.ranks)

    @property
    def busy(self) -> float:
        """The share of the step in which a rank computes, on average."""
        work = sum(span.end - span.start for spans in self.ranks for span in spans)
        return work / (len(self.ranks) * self.seconds)


def schedule_actions(schedule: str, pipeline: int, virtual: int, micro_batches: int) -> list[list[Action]]:
    """What each rank does, in order, under the schedule of that name. Chunk c is on rank c mod P.

    Raises UsageError where the schedule does not take these numbers.
    """
    check_schedule(schedule, pipeline, virtual, micro_batches)
    if schedule == "1f1b":
        return [_one_forward_one_backward(rank, pipeline, micro_batches) for rank in range(pipeline)]

    from torch.distributed.pipelining import schedules  # takes a second to import

    cls = {
        "interleaved-1f1b": schedules.ScheduleInterleaved1F1B,
        "zero-bubble": schedules.ScheduleInterleavedZeroBubble,
    }[schedule]
    # All that a schedule asks its stages before it runs.
    stage: Any = SimpleNamespace(group_rank=0, group_size=pipeline, num_stages=pipeline * virtual, submod=None)
    orders = cls([stage] * virtual, micro_batches).pipeline_order
    return [
        [
            Action(KINDS[action.computation_type.value], action.stage_index, action.microbatch_index or 0)
            for action in orders[rank]
            # The rest is neither computing nor between stages, such as the reduction of gradients.
            if action is not None and action.computation_type.value in KINDS
        ]
        for rank in range(pipeline)
    ]


def _one_forward_one_backward(rank: int, pipeline: int, micro_batches: int) -> list[Action]:
    """The order in which torch's Schedule1F1B runs. (Its own list of it is wrong on the last rank, in torch 2.13.)"""
    ahead = min(micro_batches, pipeline - rank)
    forward = [Action("forward", rank, number) for number in range(micro_batches)]
    backward = [Action("backward", rank, number) for number in range(micro_batches)]
    steady = [action for pair in zip(backward, forward[ahead:], strict=False) for action in pair]
    return [*forward[:ahead], *steady, *backward[micro_batches - ahead :]]


def simulate(ranks: list[list[Action]], forward: Sequence[float], transfer: Sequence[float]) -> Timeline:
    """The timeline of one step.

    ranks: from `schedule_actions`. forward: seconds of each chunk's forward pass for one micro-batch; the other kinds
    take EFFORT times as long. transfer: seconds that each chunk's input travels to it (the first is not used); in the
    backward pass its gradient travels back as long.
    """
    chunks, pipeline = len(forward), len(ranks)
    done: dict[tuple[bool, int, int], float] = {}  # (is backward, chunk, micro-batch) -> when its result has arrived
    free = [0.0] * pipeline
    link_free: dict[tuple[int, int], float] = {}
    spans: list[list[Span]] = [[] for _ in ranks]
    position = [0] * pipeline

    def arrival(action: Action) -> float | None:
        """When what the action needs from other chunks is there; None if that is not known yet."""
        backward = action.kind != "forward"
        if action.kind == "weight gradient" or action.chunk == (chunks - 1 if backward else 0):
            return 0.0
        return done.get((backward, action.chunk + (1 if backward else -1), action.micro_batch))

    def send(action: Action, end: float) -> None:
        backward = action.kind != "forward"
        receiver = action.chunk - 1 if backward else action.chunk + 1
        key = (backward, action.chunk, action.micro_batch)
        if action.kind == "weight gradient" or not 0 <= receiver < chunks:
            return
        link = action.chunk % pipeline, receiver % pipeline
        if link[0] == link[1]:
            done[key] = end
            return
        seconds = transfer[action.chunk if backward else receiver]
        done[key] = link_free[link] = max(end, link_free.get(link, 0.0)) + seconds

    waiting = True
    while waiting:
        waiting, moved = False, False
        for rank, actions in enumerate(ranks):
            while position[rank] < len(actions):
                action = actions[position[rank]]
                ready = arrival(action)
                if ready is None:
                    waiting = True
                    break
                start = max(free[rank], ready)
                end = start + forward[action.chunk] * EFFORT[action.kind]
                spans[rank].append(Span(action, start, end))
                free[rank], moved = end, True
                position[rank] += 1
                send(action, end)
        assert moved or not waiting, "the schedule waits for itself"
    return Timeline(spans)
