"""Which documents are held out."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from attnres.data.documents import Documents
from attnres.data.split import held_out, split_documents


def sides(texts, fraction, families=()) -> list[list[str]]:
    """The training texts and those held out."""
    documents = Documents("texts", [], lambda: iter(texts), families)
    split = list(split_documents(documents, fraction).texts(documents))
    return [[text for text, held in split if held == side] for side in (False, True)]


@given(size=st.integers(100, 200), fraction=st.floats(0.02, 0.5), seed=st.integers(0, 100))
def test_share_is_close_whatever_the_order(size, fraction, seed):
    rng = np.random.default_rng(seed)
    hashes, sizes = rng.integers(2**63, size=size).astype(np.uint64), rng.integers(1, 999, size)
    held = held_out(hashes, sizes, fraction)
    assert held is not None and abs(sizes[held].sum() / sizes.sum() - fraction) < 0.01
    order = np.argsort(hashes)
    np.testing.assert_array_equal(held_out(hashes[order], sizes[order], fraction), held[order])


def test_equal_texts_and_families_stay_on_one_side():
    texts = [f"text {i % 20}" for i in range(40)]
    train, held = sides(texts, 0.2)
    assert held and sorted(train + held) == sorted(texts) and not set(train) & set(held)
    family = list(range(0, 20, 4)) + list(range(20, 40, 4))
    train, held = sides(texts, 0.2, families=[family])
    assert held and {texts[i] in held for i in family} == {texts[i] not in train for i in family}
    assert len({texts[i] in held for i in family}) == 1


def test_the_end_of_the_longest_is_held_out_where_whole_documents_do_not_fit():
    assert sides(["é" * 95 + "b" * 5], 0.05) == [["é" * 95], ["b" * 5]]
    texts = ["short", "a" * 900, "short", "a" * 900]  # a copy would have the held-out end in the training part
    assert sides(texts, 0.05) == [["short", "a" * 855], ["a" * 45]]
