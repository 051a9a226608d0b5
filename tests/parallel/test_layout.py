"""How processes are laid out, and what does not fit."""

import pytest

from attnres.errors import UsageError
from attnres.parallel.layout import Layout


@pytest.mark.parametrize(
    ("layout", "processes", "message"),
    [
        (Layout(pipeline=2, shard=2), 2, "is 4 processes, but there are 2"),
        (Layout(pipeline=3), 4, "is 3 processes, but there are 4"),
        (Layout(replicate=2), 1, "but there are 1"),
    ],
)
def test_a_layout_for_another_number_of_processes_is_refused(layout, processes, message):
    with pytest.raises(UsageError, match=message):
        layout.fit(processes)


def test_layouts_are_checked():
    assert Layout(pipeline=2).fit(6).shard == 3
    assert Layout().fit(1) == Layout(shard=1)
    with pytest.raises(UsageError, match=r"12 chunks .* more than 8 sublayers"):
        Layout(pipeline=4, virtual=3, shard=1).check(8, 4)
    with pytest.raises(UsageError, match="batch_size 6 does not divide over 4"):
        Layout(replicate=2, shard=2).check(8, 6)
    for bad in ({"pipeline": 0}, {"shard": -1}, {"timeout": float("nan")}, {"virtual": 2}):
        with pytest.raises(UsageError):
            Layout(**bad)
