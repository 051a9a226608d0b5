"""The order of training: coverage by counting, exact resumption; the fixed validation set."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from attnres.data import Sampler, validation_batches


def epoch_starts(sampler: Sampler) -> list[int]:
    """First tokens of the windows of one epoch (tokens are their own positions), one window per batch."""
    epoch, starts = sampler.state()["epoch"], []
    while True:
        before = sampler.state()
        window = sampler.next()[0]
        if sampler.state()["epoch"] != epoch:
            sampler.restore(before)
            sampler._enter(epoch + 1, 0)
            return starts
        assert (np.diff(window) == 1).all()
        starts.append(int(window[0]))


@given(length=st.integers(2, 200), sequence=st.integers(1, 30), seed=st.integers(0, 2**40))
@example(length=31, sequence=30, seed=0)  # one window, wherever it begins
@example(length=32, sequence=30, seed=1)
def test_every_target_once_per_epoch(length, sequence, seed):
    if length <= sequence:
        return
    sampler = Sampler(np.arange(length, dtype=np.uint16), sequence, 1, seed)
    for _ in range(3):
        starts = epoch_starts(sampler)
        targets = np.zeros(length, dtype=int)
        for start in starts:
            targets[start + 1 : start + sequence + 1] += 1
        assert targets.max() == 1
        covered = np.flatnonzero(targets)
        assert (np.diff(covered) == 1).all()  # no gap inside
        assert covered[0] <= sequence and length - 1 - covered[-1] < sequence  # nothing more would fit at the ends


def test_the_order_is_pinned():
    """A checkpoint must go on after an upgrade: this fails if the order ever changes."""
    sampler = Sampler(np.arange(100), 10, 4, 7)
    assert [sampler.next()[:, 0].tolist() for _ in range(3)] == [[53, 23, 33, 83], [13, 73, 63, 43], [3, 7, 27, 17]]


def test_batches_cross_epochs_and_do_not_depend_on_batch_size():
    tokens = np.arange(103, dtype=np.uint8)
    by_one, by_seven = Sampler(tokens, 10, 1, 3), Sampler(tokens, 10, 7, 3)
    for _ in range(5):
        batch = by_seven.next()
        assert batch.shape == (7, 11) and batch.dtype == np.int64
        np.testing.assert_array_equal(batch, np.concatenate([by_one.next() for _ in range(7)]))


def corpus_of(length: int) -> Any:
    return SimpleNamespace(train=np.arange(1000), validation=np.arange(length, dtype=np.uint16))


def test_validation_is_fixed_spread_and_without_overlap():
    batches = list(validation_batches(corpus_of(1001), 10, 4, 205))
    assert [len(batch) for batch in batches] == [4, 4, 4, 4, 4]  # 20 whole sequences of the 100 there are
    windows = np.concatenate(batches)
    assert windows.dtype == np.int64 and (np.diff(windows, axis=1) == 1).all()
    assert windows[:, 0].tolist() == list(range(0, 1000, 50))
    np.testing.assert_array_equal(windows, np.concatenate(list(validation_batches(corpus_of(1001), 10, 7, 205))))


def test_processes_read_their_own_validation_windows():
    """7 windows in batches of 4, of which a process has 2: of the last 3 the second one reads one."""
    whole = list(validation_batches(corpus_of(701), 100, 4, 700))
    parts = [list(validation_batches(corpus_of(701), 100, 4, 700, rows)) for rows in (range(0, 2), range(2, 4))]
    assert [[len(batch) for batch in part] for part in parts] == [[2, 2], [2, 1]]
    for batch, *of_batch in zip(whole, *parts, strict=True):
        np.testing.assert_array_equal(np.concatenate(of_batch), batch)
