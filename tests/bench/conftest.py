import pytest
import torch

from attnres.bench import gpu, operator, readers, step
from tests.ops.conftest import kernel as kernel  # builds it, or skips the test


@pytest.fixture(autouse=True)
def nothing_large(monkeypatch):
    """Nothing is compiled, no process is started, and fla, whose import takes seconds, is a stand-in."""
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    for module in (operator, step, gpu):
        monkeypatch.setattr(module, "copy_bandwidth", lambda *_: 1e10)
    monkeypatch.setattr(operator, "SHAPE", operator.OperatorShape(2, 8, 16, 3))
    for module in (operator, step):
        monkeypatch.setattr(module, "alone", lambda function, *arguments: function(*arguments))
    monkeypatch.setitem(readers._LOADERS, "fla-core", lambda _: readers.stacked)
