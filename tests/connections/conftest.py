import pytest
import torch


@pytest.fixture
def float64():
    """New tensors are of float64: formulas are compared to its last digits, on every processor."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)
