import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread_and_seed():
    """Several torch processes with two threads each on two cores are far slower than with one."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
