"""Batches read by a thread: the sampler's own, in its order, from wherever a run was stopped."""

import json

import numpy as np
import pytest

from attnres.data import Prefetch, Sampler

TOKENS = np.random.default_rng(0).integers(0, 256, 500).astype(np.uint8)


def make(ahead=3, prepare=lambda batch: batch):
    return Prefetch(Sampler(TOKENS, 16, 7, 11), ahead, prepare)


@pytest.mark.parametrize(("done", "ahead"), [(0, 3), (4, 1), (11, 16)])
def test_the_same_batches_from_wherever_it_was_stopped(done, ahead):
    plain, ours = Sampler(TOKENS, 16, 7, 11), make(ahead)
    for _ in range(done):
        np.testing.assert_array_equal(ours.next(), plain.next())
    assert ours.state() == plain.state(), "what is read ahead has not been handed out"
    resumed = make()
    resumed.next()
    resumed.restore(json.loads(json.dumps(ours.state())))
    assert resumed.state() == plain.state()
    for _ in range(20):
        expected = plain.next()
        np.testing.assert_array_equal(ours.next(), expected)
        np.testing.assert_array_equal(resumed.next(), expected)
