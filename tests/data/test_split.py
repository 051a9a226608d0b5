"""Which documents are held out."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnres.data.split import split_documents

documents = st.lists(st.tuples(st.integers(0, 2**64 - 1), st.integers(1, 5000)), min_size=1, max_size=60)


def split(docs, fraction):
    hashes, lengths = np.array([h for h, _ in docs], dtype=np.uint64), np.array([n for _, n in docs], dtype=np.int64)
    return split_documents(hashes, lengths, lengths, fraction)


@given(docs=documents, fraction=st.floats(0.001, 0.999))
def test_pieces_cover_all_tokens_once_in_order(docs, fraction):
    pieces, whole, cut, repeated = split(docs, fraction)
    assert all(a.stop <= b.start for a, b in pairwise(pieces))
    assert all(piece.start < piece.stop for piece in pieces)
    kept = range(len(docs)) if cut is None else [i for i, (h, _) in enumerate(docs) if h not in dict(docs[:i])]
    starts = np.cumsum([0, *(n for _, n in docs)])
    covered = [token for piece in pieces for token in range(piece.start, piece.stop)]
    assert covered == [token for i in kept for token in range(starts[i], starts[i + 1])]
    assert repeated == len(docs) - len(kept)
    held_out = {token for piece in pieces if piece.held_out for token in range(piece.start, piece.stop)}
    assert whole == (sum(int(starts[i]) in held_out for i in kept) if cut is None else 0)
    if sum(docs[i][1] for i in kept) > len(kept):  # some document can be cut
        assert {piece.held_out for piece in pieces} == {False, True}


@given(size=st.integers(100, 200), fraction=st.floats(0.02, 0.5), seed=st.integers(0, 100))
def test_share_is_close_and_whole_documents_are_held_out_whatever_their_order(size, fraction, seed):
    rng = np.random.default_rng(seed)
    docs = [(int(h), int(n)) for h, n in zip(rng.integers(2**63, size=size), rng.integers(1, 999, size), strict=True)]

    def held_out(docs):
        held = np.zeros(sum(n for _, n in docs), dtype=bool)
        for piece in split(docs, fraction).pieces:
            held[piece.start : piece.stop] = piece.held_out
        sides = np.split(held, np.cumsum([n for _, n in docs])[:-1])
        assert all(side.all() or not side.any() for side in sides)
        return held.mean(), {h for (h, _), side in zip(docs, sides, strict=True) if side.all()}

    share, chosen = held_out(docs)
    assert abs(share - fraction) < 0.01
    assert held_out(sorted(docs)) == (share, chosen)


def test_equal_texts_go_the_same_way():
    docs = [(7, 10), (5, 10), (7, 10), *[(100 + i, 10) for i in range(37)]]
    pieces = split(docs, 0.1).pieces
    held = {position // 10 for p in pieces if p.held_out for position in range(p.start, p.stop)}
    assert held == {0, 1, 2, 3}  # hash 5, then both of hash 7, then hash 100


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        ([1000], [(0, 950, False), (950, 1000, True)]),
        ([1000, 1000], [(0, 900, False), (900, 1000, True), (1000, 2000, False)]),
        ([10, 1000], [(0, 960, False), (960, 1010, True)]),
    ],
    ids=["one document", "two long ones", "a tiny and a long one"],
)
def test_the_end_of_the_longest_is_held_out_where_whole_documents_do_not_fit(lengths, expected):
    assert split(list(enumerate(lengths)), 0.05).pieces == expected


def test_a_copy_of_the_cut_document_is_left_out():
    """Otherwise all of the held-out end would be in the training part."""
    assert split([(5, 1000), (3, 10), (5, 1000), (3, 10)], 0.05) == (
        [(0, 950, False), (950, 1000, True), (1000, 1010, False)],
        0,
        0,
        2,
    )
