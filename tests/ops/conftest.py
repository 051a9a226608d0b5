import shutil

import pytest

from attnres.ops import cpu
from attnres.ops.backends import native_backend


@pytest.fixture(scope="session")
def kernel() -> None:
    """The CPU kernel: the package's, or one that is compiled once on a machine."""
    if native_backend("cpu") != "cpu":
        if shutil.which(cpu.compiler()) is None:
            pytest.skip("no CPU kernel, and no compiler")
        try:
            cpu.build()  # raises BuildError with what the compiler says
        except OSError as error:
            pytest.skip(f"no CPU kernel: {error}")
        pytest.fail("the CPU kernel is compiled and does not load")


@pytest.fixture(params=["reference", "cpu"])
def backend(request) -> str:
    if request.param == "cpu":
        request.getfixturevalue("kernel")
    return request.param
