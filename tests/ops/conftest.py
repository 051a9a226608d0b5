from pathlib import Path

import pytest

from attnres.ops import cpu
from attnres.ops.backends import native_backend


@pytest.fixture(scope="session")
def kernel() -> Path:
    """The CPU kernel: compiled at most once on a machine, and never where there is no compiler."""
    try:
        path = cpu.build()
    except (OSError, cpu.BuildError) as error:
        pytest.skip(f"no CPU kernel: {error}")
    assert native_backend("cpu") == "cpu"
    return path


@pytest.fixture(params=["reference", "cpu"])
def backend(request) -> str:
    if request.param == "cpu":
        request.getfixturevalue("kernel")
    return request.param
