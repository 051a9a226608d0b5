"""Which documents are held out for validation: their texts alone decide, so it is the same for every tokenizer."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from attnres.data.documents import Counts, Documents


@dataclass(frozen=True, eq=False)
class Split:
    """Where each document with text goes."""

    counts: Counts
    held: np.ndarray
    """Whether it is held out: bool [documents]."""
    kept: np.ndarray
    """Whether it goes anywhere: bool [documents]."""
    cut: int | None = None
    """The number of the document whose end is held out, where whole ones could not be."""
    share: float = 0.0
    """How much of that one is."""

    def texts(self, documents: Documents) -> Iterator[tuple[str, bool]]:
        """Each text and whether it is held out, in order."""
        for number, text in enumerate(filter(None, documents.read())):
            if number == self.cut:
                at = len(text) - max(1, min(round(self.share * len(text)), len(text) - 1))
                yield text[:at], False
                yield text[at:], True
            elif self.kept[number]:
                yield text, bool(self.held[number])


def split_documents(documents: Documents, fraction: float) -> Split:
    """Read the documents and hold out about `fraction` of their text as whole documents (`held_out`).

    Where whole documents cannot come near (one document, or a few long ones), the end of the longest is held out
    instead, and of equal texts only the first is kept: a copy of the longest would have the held-out end in the
    training part.
    """
    digests, lengths, skipped = array("Q"), array("q"), 0
    for text in documents.read():
        if text:
            utf8 = text.encode("utf-8", errors="replace")
            digests.append(int.from_bytes(hashlib.sha256(utf8).digest()[:8], "little"))
            lengths.append(len(utf8) + 1)
        skipped += text is None
    hashes, sizes = np.array(digests, np.uint64), np.array(lengths, np.int64)
    counts = Counts(documents=len(sizes), bytes=int(sizes.sum()) - len(sizes), skipped=skipped)
    for family in map(np.array, documents.families):
        hashes[family] = hashes[family].min()
    held, every = held_out(hashes, sizes, fraction), np.full(len(sizes), True)
    if held is not None or not len(sizes):
        return Split(counts, every if held is None else held, every)
    first = np.sort(np.unique(hashes, return_index=True)[1])
    longest = int(first[np.lexsort((hashes[first], -sizes[first]))[0]])
    share = fraction * float(sizes[first].sum() / sizes[longest])
    return Split(counts, ~every, np.isin(np.arange(len(sizes)), first), longest, share)


def held_out(hashes: np.ndarray, sizes: np.ndarray, fraction: float) -> np.ndarray | None:
    """Which documents to hold out, bool [documents]; None where whole ones cannot come near the fraction.

    hashes: uint64 [documents], equal where documents must go the same way. sizes: int64 [documents], in bytes, what
    follows each counting as one.

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
