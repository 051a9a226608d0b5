"""What travels between pipeline stages, decided before anything runs.

A connection's `values` are a tuple of tensors, and a tensor that a sublayer leaves alone is the same object before and
after. So one pass of the connection over shapes alone shows, for every connection, which entries of depth's state each
site makes and how long each of them stays: finished blocks, earlier outputs and the embedding are found without naming
any of them. From that follows what each chunk of a pipeline must be sent and what its rank already has.

Words: a *chunk* is a run of consecutive sublayers; chunk c is on rank c mod P, unless a plan says otherwise.
*Transition* c is what goes from chunk c - 1 to chunk c.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor, nn

from attnres.connections import Connection, Values, mean_read
from attnres.parallel.schedule import chunk_sites


@dataclass(frozen=True)
class Entry:
    """One tensor of depth's state, from the site that makes it to the last one that has it in its values."""

    index: int
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize


class Held(NamedTuple):
    """An entry as one rank holds it: which, and since which of the rank's chunks."""

    entry: Entry
    since: int


@dataclass(frozen=True)
class Trace:
    """What the values consist of at each site 0 .. L, and which sites use each of the connection's parameters."""

    values: list[tuple[Entry, ...]]
    users: dict[str, list[int]]


@dataclass(frozen=True)
class ChunkPlan:
    """What one chunk reads, makes, gets and passes on. Each gradient goes the way of its entry, backwards."""

    sites: range
    inputs: tuple[Held, ...]
    """What it reads, each entry once."""
    positions: tuple[int, ...]
    """For each of the values at its first site the index of its input."""
    made: tuple[Held, ...]
    """What is new in the values after its last sublayer."""
    outputs: tuple[int, ...]
    """Where those stand in the values."""
    received: tuple[Held, ...]
    """What the chunk before it sends, as this rank holds it."""
    sent: tuple[Held, ...]
    """What it sends to the next chunk, in the order in which that one receives it."""
    forgotten: tuple[Held, ...]
    """What no later chunk of the rank reads."""


def trace(connection: Connection, shape: tuple[int, ...], stream: torch.dtype, output: torch.dtype) -> Trace:
    """Follow the values through all sites, on shapes alone.

    connection: on the meta device; shape: of the embedding, [batch, time, dim]; stream, output: the dtypes of the
    embedding and of a sublayer's output, which differ under autocast.
    """
    connection = copy.deepcopy(connection).requires_grad_()  # what is fixed is used, too
    names = {parameter: name for name, parameter in connection.named_parameters()}
    users: dict[str, list[int]] = {name: [] for name in names.values()}
    count = itertools.count()

    def entries(values: Values, known: dict[int, Entry]) -> tuple[Entry, ...]:
        for value in values:
            if id(value) not in known:
                known[id(value)] = Entry(next(count), tuple(value.shape), value.dtype)
        return tuple(known[id(value)] for value in values)

    values = connection.start(torch.empty(shape, dtype=stream, device="meta"))
    seen = [entries(values, {})]
    for site in range(connection.sublayers + 1):
        with torch.enable_grad():
            weights = connection.weigh(values, site)
            h = connection.gather(values, weights, site)
            readout = site == connection.sublayers
            if readout:
                after = values
            else:
                y = mean_read(h).detach().to(output)
                after = connection.absorb(values, weights, site, h, y)
        for parameter in _leaves((*(h if isinstance(h, tuple) else (h,)), *after)):
            if parameter in names:
                users[names[parameter]].append(site)
        if not readout:
            seen.append(entries(after, {id(value): entry for value, entry in zip(values, seen[-1], strict=True)}))
            # One graph per site: what is new starts anew, and what stayed must remain the same object.
            stayed = {id(value) for value in values}
            values = tuple(value if id(value) in stayed else value.detach() for value in after)
    return Trace(seen, users)


def _leaves(outputs: Iterable[Tensor]) -> set[nn.Parameter]:
    """The parameters that the outputs are computed from."""
    waiting = [output.grad_fn for output in outputs if output.grad_fn is not None]
    visited, leaves = set(waiting), set()
    while waiting:
        node = waiting.pop()
        if hasattr(node, "variable"):
            leaves.add(node.variable)  # pyright: ignore[reportAttributeAccessIssue]
        following = {n for n, _ in node.next_functions if n is not None} - visited
        visited |= following
        waiting += following
    return leaves


def plan(
    values: Sequence[tuple[Entry, ...]], cuts: Sequence[int], ranks: int, rank_of: Sequence[int] | None = None
) -> list[ChunkPlan]:
    """Decide what each chunk reads, makes, receives, sends and may forget.

    A chunk receives what its rank has never had, so an entry comes to each rank once.

    values: `Trace.values`. cuts: the first site of each chunk but the first. rank_of: the rank of each chunk where they
    do not go round, such as in a V.
    """
    sites = chunk_sites(len(values) - 1, cuts)
    rank_of = [chunk % ranks for chunk in range(len(sites))] if rank_of is None else rank_of
    same_rank = [[c for c in range(len(sites)) if rank_of[c] == rank_of[chunk]] for chunk in range(len(sites))]
    # What each chunk reads; behind the last one nothing is passed on.
    read = [(), *(values[cut] for cut in cuts), ()]
    held: list[dict[Entry, Held]] = []
    received: list[list[Entry]] = []
    for chunk in range(len(sites)):
        before = max((c for c in same_rank[chunk] if c < chunk), default=None)
        remembered = held[before] if before is not None else {}
        received.append([entry for entry in dict.fromkeys(read[chunk]) if entry not in remembered])
        new = dict.fromkeys((*read[chunk], *read[chunk + 1]))
        held.append({**{entry: Held(entry, chunk) for entry in new}, **remembered})

    def hold(chunk: int, entries: Iterable[Entry]) -> tuple[Held, ...]:
        return tuple(held[chunk][entry] for entry in entries)

    chunks = []
    for chunk in range(len(sites)):
        inputs = list(dict.fromkeys(read[chunk]))
        made = [entry for entry in dict.fromkeys(read[chunk + 1]) if entry not in inputs]
        later = min((c for c in same_rank[chunk] if c > chunk), default=None)
        kept = () if later is None else hold(later, read[later])
        chunks.append(
            ChunkPlan(
                sites=sites[chunk],
                inputs=hold(chunk, inputs),
                positions=tuple(inputs.index(entry) for entry in read[chunk]),
                made=hold(chunk, made),
                outputs=tuple(read[chunk + 1].index(entry) for entry in made),
                received=hold(chunk, received[chunk]),
                sent=hold(chunk, received[chunk + 1] if chunk + 1 < len(sites) else ()),
                forgotten=tuple(key for key in hold(chunk, (*inputs, *made)) if key not in kept),
            )
        )
    return chunks
