import mmap
import sys

import pytest
import torch

from attnres.train.memory import PeakMemory


def held(size: int) -> None:
    """Touch new pages: what an allocator kept of earlier tests would hide them."""
    with mmap.mmap(-1, size) as pages:
        for _ in range(size // 2**20):
            pages.write(b"x" * 2**20)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can reset its high-water mark")
def test_peak_counts_what_was_held_in_between_and_nothing_before():
    held(48 * 2**20)  # before
    peak = PeakMemory(torch.device("cpu"))
    assert peak.bytes() < 16 * 2**20
    held(32 * 2**20)  # and given back at once
    assert 24 * 2**20 < peak.bytes() < 40 * 2**20
