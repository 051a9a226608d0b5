"""How depth is cut into chunks, and which numbers of them and of micro-batches torch's schedules take."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Literal, get_args

from attnres.errors import UsageError

Schedule = Literal["1f1b", "interleaved-1f1b", "zero-bubble"]


def default_schedule(virtual: int) -> Schedule:
    """Return the order of work where none was named."""
    return "interleaved-1f1b" if virtual > 1 else "1f1b"


def check_schedule(schedule: str, ranks: int, virtual: int, micro_batches: int) -> None:
    """Raise UsageError, one line that says what to change, unless the schedule takes these numbers."""
    if schedule not in get_args(Schedule):
        raise UsageError(f"schedule must be one of {', '.join(get_args(Schedule))}, not {schedule!r}")
    if schedule == "1f1b":
        if virtual > 1:
            raise UsageError(
                "schedule 1f1b has one virtual stage on each rank; use interleaved-1f1b or zero-bubble for more"
            )
        if micro_batches < ranks:
            raise UsageError(
                f"1f1b over {ranks} ranks needs at least {ranks} micro-batches in a step, not {micro_batches}; "
                "in training --accumulate sets them"
            )
    elif micro_batches % max(1, micro_batches // ranks):
        fits = micro_batches // ranks * ranks
        raise UsageError(
            f"{schedule} over {ranks} ranks cannot share out {micro_batches} micro-batches; use {fits} or "
            f"{fits + ranks}"
        )


def even_cuts(sublayers: int, chunks: int) -> list[int]:
    """The first site of each chunk but the first, as even as whole sublayers allow.

    Raises:
        UsageError: a chunk would be empty.
    """
    if chunks > sublayers:
        raise UsageError(
            f"{chunks} chunks (pipeline x virtual) are more than {sublayers} sublayers; use fewer stages or more layers"
        )
    return [sublayers * chunk // chunks for chunk in range(1, chunks)]


def chunk_sites(sublayers: int, cuts: Sequence[int]) -> list[range]:
    """The sites of each chunk. Raises UsageError unless the cuts rise strictly between 0 and `sites`."""
    bounds = [0, *cuts, sublayers]
    if any(left >= right for left, right in itertools.pairwise(bounds)):
        raise UsageError(f"cuts must rise, from 1 to {sublayers - 1} at most, and not be {list(cuts)}")
    return [range(left, right) for left, right in itertools.pairwise(bounds)]
