"""Which documents and tokens are held out for validation."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
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
    whole: int
    """How many whole documents are held out."""
    cut: int | None = None
    """The number of the document whose end is held out, where whole ones could not be."""
    repeated: int = 0
    """Documents that were then left out of both parts, because their text is another one's."""


class Survey:
    """What the split needs to know of each text, gathered one by one."""

    def __init__(self) -> None:
        self._hashes, self._sizes = array("Q"), array("q")

    def add(self, text: str) -> None:
        utf8 = text.encode("utf-8", errors="replace")
        self._hashes.append(int.from_bytes(hashlib.sha256(utf8).digest()[:8], "little"))
        self._sizes.append(len(utf8) + 1)

    @property
    def sizes(self) -> np.ndarray:
        """int64 [documents], in UTF-8 bytes, the separator counting as one."""
        return np.array(self._sizes, np.int64)

    def hashes(self, families: Sequence[Sequence[int]] = ()) -> np.ndarray:
        """The hash of each text; in a family, which has the numbers of its texts, the lowest: uint64 [documents]."""
        hashes = np.array(self._hashes, np.uint64)
        for family in families:
            members = np.array(family)
            hashes[members] = hashes[members].min()
        return hashes


def held_out(hashes: np.ndarray, sizes: np.ndarray, fraction: float) -> np.ndarray | None:
    """Which documents to hold out, bool [documents]; None where whole ones cannot come near the fraction.

    hashes: uint64 [documents], equal where documents must go the same way. sizes: int64 [documents], in bytes: so that
    every tokenizer is judged on the same documents.

    In the order of their hashes, documents are held out if that brings the share nearer to the fraction. So the choice
    depends on the set of texts, not on names or order.
    """
    unique, group = np.unique(hashes, return_inverse=True)
    totals = np.zeros(len(unique), dtype=np.int64)
    np.add.at(totals, group, sizes)
    target, held, taken = fraction * totals.sum(), 0, np.zeros(len(unique), dtype=bool)
    for i, size in enumerate(totals.tolist()):
        if size < 2 * (target - held):
            held += size
            taken[i] = True
    return None if taken.all() or held < target / 2 else taken[group]


def split_documents(hashes: np.ndarray, sizes: np.ndarray, lengths: np.ndarray, fraction: float) -> Split:
    """Hold out about `fraction` of the text as whole documents (`held_out`).

    lengths: int64 [documents], in tokens.

    Where whole documents cannot come near (one document, or a few long ones), the end of the longest is held out
    instead, and of equal texts only the first is kept: a copy of the longest would have the held-out end in the
    training part. The pieces are in order and cover all tokens that are kept.
    """
    stops, held = np.cumsum(lengths), held_out(hashes, sizes, fraction)
    if held is None:
        return _cut(hashes, lengths, stops, fraction)
    last = np.flatnonzero(np.append(held[1:] != held[:-1], True))  # the last document of each run
    starts = np.concatenate(([0], stops[last][:-1]))
    return Split(
        [
            Piece(int(start), int(stop), bool(side))
            for start, stop, side in zip(starts, stops[last], held[last], strict=True)
        ],
        int(held.sum()),
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
    return Split(pieces, 0, longest, len(hashes) - len(kept))
