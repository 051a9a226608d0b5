"""What the processes of a run compare and say, without starting any."""

import shutil
from pathlib import Path

import attnres
from attnres.parallel.world import code_digest

PACKAGE = Path(attnres.__file__).parent


def test_the_digest_covers_every_source_that_decides_a_result(tmp_path):
    copy = shutil.copytree(PACKAGE, tmp_path / "attnres", ignore=shutil.ignore_patterns("__pycache__"))
    before = code_digest.__wrapped__(copy)
    sources = [path for path in (copy / "ops" / "csrc").iterdir() if path.suffix != ".so"]
    assert {"attend.cpp", "pool.h"} <= {path.name for path in sources}
    for path in [*sources, copy / "ops" / "triton_kernels.py", copy / "model" / "transformer.py"]:
        text = path.read_text()
        path.write_text(text + "\n")
        assert code_digest.__wrapped__(copy) != before, path.name
        path.write_text(text)
    (copy / "ops" / "csrc" / "attend-0.so").touch()  # compiled at install time, for this machine alone
    assert code_digest.__wrapped__(copy) == before
