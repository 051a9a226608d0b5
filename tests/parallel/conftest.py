import pytest

from tests.parallel.ranks import Ranks


@pytest.fixture(scope="session")
def ranks(tmp_path_factory):
    pool = Ranks(4, tmp_path_factory.mktemp("ranks"))
    yield pool
    pool.stop()
