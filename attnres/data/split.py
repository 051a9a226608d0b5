"""Which tokens are held out for validation."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Piece(NamedTuple):
    """Tokens start..stop-1 of all tokens, and where they go."""

    start: int
    stop: int
    held_out: bool


def split_documents(hashes: np.ndarray, lengths: np.ndarray, fraction: float) -> list[Piece]:
    """Hold out about `fraction` of the tokens as whole documents.

    hashes: uint64 [documents], of each text. lengths: int64 [documents], in tokens.

    In the order of their hashes, a document is held out if that brings the share nearer to the fraction. So the choice
    depends on the set of texts, not on names or order, and equal texts go the same way. Where whole documents cannot
    come near (one document, or a few long ones), the end of the longest is held out instead.

    The pieces cover all tokens in order.
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
        return _cut(int(np.lexsort((hashes, -lengths))[0]), lengths, stops, target)
    held_out = taken[group]
    last = np.flatnonzero(np.append(held_out[1:] != held_out[:-1], True))  # the last document of each run
    starts = np.concatenate(([0], stops[last][:-1]))
    return [
        Piece(int(start), int(stop), bool(side))
        for start, stop, side in zip(starts, stops[last], held_out[last], strict=True)
    ]


def _cut(longest: int, lengths: np.ndarray, stops: np.ndarray, target: float) -> list[Piece]:
    length, stop = int(lengths[longest]), int(stops[longest])
    cut = stop - max(1, min(round(target), length - 1))
    pieces = [Piece(0, cut, False), Piece(cut, stop, True), Piece(stop, int(stops[-1]), False)]
    return [piece for piece in pieces if piece.start < piece.stop]
