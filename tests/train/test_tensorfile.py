"""The file that several processes fill: the same bytes as safetensors writes, whoever writes which rows."""

import pytest
import torch
from safetensors.torch import load_file, save_file

from attnres.train.tensorfile import TensorFile, TensorRows, shape_of

TENSORS = {
    "b": torch.randn(5, 3),
    "a": torch.randn(4, 2, 3).bfloat16(),
    "count": torch.tensor(7.0),
    "state": torch.arange(11, dtype=torch.uint8),
    "none": torch.empty(0, 3),
    "whole": torch.arange(6, dtype=torch.int64).reshape(2, 3),
}


@pytest.fixture
def file(tmp_path):
    file = TensorFile(tmp_path / "x.safetensors", {name: shape_of(tensor) for name, tensor in TENSORS.items()})
    file.create()
    return file


def cut(tensors, first, last):
    """The rows from one share of them to another, as processes have them."""
    rows = {}
    for name, tensor in tensors.items():
        if tensor.ndim:
            start, stop = int(first * len(tensor)), int(last * len(tensor))
            rows[name] = TensorRows(start, tensor[start:stop])
        elif first == 0:
            rows[name] = TensorRows(0, tensor)
    return rows


def test_parts_make_the_file_that_safetensors_writes(file, tmp_path):
    for first, last in ((0.5, 1.0), (0.0, 0.25), (0.25, 0.5)):  # in any order
        file.write(cut(TENSORS, first, last))
    found = load_file(file.path)
    assert found.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert found[name].dtype == tensor.dtype and torch.equal(found[name], tensor), name
    save_file(TENSORS, tmp_path / "theirs")
    assert file.path.read_bytes() == (tmp_path / "theirs").read_bytes()
