"""How processes are laid out, what does not fit, and what they compare before they begin."""

import shutil
from pathlib import Path

import pytest

import attnres
from attnres.errors import UsageError
from attnres.parallel.layout import Layout
from attnres.parallel.world import code_digest

PACKAGE = Path(attnres.__file__).parent


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


def test_the_digest_covers_every_source_that_decides_a_result(tmp_path):
    copy = tmp_path / "attnres"
    for folder in ("ops", "model"):
        shutil.copytree(PACKAGE / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    before = code_digest.__wrapped__(copy)
    for name in ("ops/csrc/attend.cpp", "ops/csrc/pool.h", "ops/triton_kernels.py", "model/transformer.py"):
        path = copy / name
        text = path.read_text(encoding="utf-8")
        path.write_text(text + "\n", encoding="utf-8")
        assert code_digest.__wrapped__(copy) != before, name
        path.write_text(text, encoding="utf-8")
    (copy / "ops" / "csrc" / "attend-0.so").touch()  # compiled at install time, for this machine alone
    assert code_digest.__wrapped__(copy) == before
