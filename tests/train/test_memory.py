import sys

import pytest
import torch

from attnres.train.memory import PeakMemory


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can reset its high-water mark")
def test_peak_counts_what_was_held_in_between_and_nothing_before():
    torch.ones(48, 2**18)  # 48 MiB, held before
    peak = PeakMemory(torch.device("cpu"))
    assert peak.bytes() < 2**22
    torch.ones(32, 2**18)  # 32 MiB, given back at once
    assert 30 * 2**20 < peak.bytes() < 40 * 2**20
