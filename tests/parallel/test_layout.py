"""How processes are laid out, and what does not fit."""

import pytest

from attnres.errors import UsageError
from attnres.parallel.layout import Layout


def test_layouts_fit_their_processes():
    assert Layout(pipeline=2).fit(6).shard == 3
    assert Layout().fit(1) == Layout(shard=1)
    for layout, processes in ((Layout(pipeline=2, shard=2), 2), (Layout(pipeline=3), 4), (Layout(replicate=2), 1)):
        with pytest.raises(UsageError, match=f"but there are {processes}"):
            layout.fit(processes)
    with pytest.raises(UsageError, match=r"12 chunks .* more than 8 sublayers"):
        Layout(pipeline=4, virtual=3, shard=1).check(8, 4)
    with pytest.raises(UsageError, match="batch_size 6 does not divide over 4"):
        Layout(replicate=2, shard=2).check(8, 6)
