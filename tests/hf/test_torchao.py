"""Weights quantised by torchao, and what that does to depth.

`make test` runs this apart, on a torchao outside the environment: every process that imports transformers would import
it, and it writes warnings then.
"""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM

from attnres.hf import classes, connection_of, mixing_matrix
from tests.hf.models import make_tokens, save_attached

pytest.importorskip("torchao", reason="torchao is not in the environment; make test runs this apart")


@pytest.mark.filterwarnings("ignore")  # torchao's
def test_int8_weights(tmp_path):
    model, folder = save_attached(tmp_path).eval(), str(tmp_path)
    from torchao.quantization import Int8WeightOnlyConfig
    from transformers import TorchAoConfig

    quantised = AutoModelForCausalLM.from_pretrained(
        folder, quantization_config=TorchAoConfig(Int8WeightOnlyConfig()), dtype=torch.float32
    )
    assert isinstance(quantised, classes.AttnResLlamaForCausalLM)
    assert "Int8" in type(quantised.model.layers[0].mlp.up_proj.weight).__name__
    for mine, theirs in zip(connection_of(quantised).parameters(), connection_of(model).parameters(), strict=True):
        assert type(mine) is torch.nn.Parameter and torch.equal(mine, theirs)
    moved = (mixing_matrix(quantised, make_tokens()) - mixing_matrix(model, make_tokens())).abs().max()
    assert 0 < moved < 0.05
