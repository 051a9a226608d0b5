import pytest

from attnres.ops.backends import native_backend


@pytest.fixture(scope="session")
def kernel() -> None:
    """The CPU kernel: the package's, or one that is compiled once on a machine."""
    if native_backend("cpu") != "cpu":
        pytest.skip("no CPU kernel")


@pytest.fixture(params=["reference", "cpu"])
def backend(request) -> str:
    if request.param == "cpu":
        request.getfixturevalue("kernel")
    return request.param
