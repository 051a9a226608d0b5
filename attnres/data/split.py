"""Which tokens are held out for validation."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Piece(NamedTuple):
    """Tokens start..stop-1 of all tokens, and where they go."""

    start: int
    stop: int
    held_out: bool


class Split(NamedTuple):
    """What `split_documents` decided."""

    pieces: list[Piece]
    cut: int | None = None
    """The number of the document whose end is held out, where whole ones could not be."""
    repeated: int = 0
    """Documents that were then left out of both parts, because their text is another one's."""


def split_documents(hashes: np.ndarray, lengths: np.ndarray, fraction: float) -> Split:
    """Hold out about `fraction` of the tokens as whole documents.

    hashes: uint64 [documents], of each text. lengths: int64 [documents], in tokens.

    In the order of their hashes, a document is held out if that brings the share nearer to the fraction. So the choice
    depends on the set of texts, not on names or order, and equal texts go the same way. Where whole documents cannot
    come near (one document, or a few long ones), the end of the longest is held out instead, and of equal texts only
    the first is kept: a copy of the longest would have the held-out end in the training part.

    The pieces are in order and cover all tokens that are kept.
    """
    unique, group = np.unique(hashes, return_inverse=True)
    sizes = np.zeros(len(unique), dtype=np.int64)
    np.add.at(sizes, group, lengths)
    target, held, taken = fraction * sizes.sum(), 0, np.zeros(len(unique), dtype=bool)
    for i, size in enumerate(sizes.tolist()):
        if size < 2 * (target - held):
            held += size
            taken[i] = True

    stops = np.cumsum(lengths)
    if taken.all() or held < target / 2:
        return _cut(hashes, lengths, stops, fraction)
    held_out = taken[group]
    last = np.flatnonzero(np.append(held_out[1:] != held_out[:-1], True))  # the last document of each run
    starts = np.concatenate(([0], stops[last][:-1]))
    return Split(
        [
            Piece(int(start), int(stop), bool(side))
            for start, stop, side in zip(starts, stops[last], held_out[last], strict=True)
        ]
    )


def _cut(hashes: np.ndarray, lengths: np.ndarray, stops: np.ndarray, fraction: float) -> Split:
    kept = np.sort(np.unique(hashes, return_index=True)[1])
    longest = int(kept[np.lexsort((hashes[kept], -lengths[kept]))[0]])
    pieces: list[Piece] = []

    def add(start: int, stop: int, held_out: bool) -> None:
        if pieces and pieces[-1].stop == start and pieces[-1].held_out == held_out:
            start = pieces.pop().start
        if start < stop:
            pieces.append(Piece(start, stop, held_out))

    for document in kept.tolist():
        start, stop = int(stops[document] - lengths[document]), int(stops[document])
        cut = stop
        if document == longest:
            cut -= max(1, min(round(fraction * int(lengths[kept].sum())), stop - start - 1))
        add(start, cut, False)
        add(cut, stop, True)
    return Split(pieces, longest, len(hashes) - len(kept))
