"""An attached model compiled layer by layer, exported, or copied after its hidden states were asked for."""

from __future__ import annotations

import pytest
import torch

from tests.hf.models import assert_near, attached, make_tokens


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # the exporter's own
def test_export_to_onnx(tmp_path):
    """From a path, and run by another engine."""
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    from transformers import AutoModelForCausalLM

    attached(num_hidden_layers=2).save_pretrained(tmp_path)

    class Logits(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = AutoModelForCausalLM.from_pretrained(tmp_path)

        def forward(self, tokens):
            return self.model(tokens, use_cache=False).logits

    model, tokens = Logits().eval(), make_tokens()
    program = torch.onnx.export(model, (tokens,), dynamo=True, verbose=False)
    assert program is not None
    domains = {node.domain for node in program.model.graph}
    assert domains <= {"", "pkg.torch.onnx", "pkg.onnxscript.torch_lib"}
    program.save(tmp_path / "model.onnx")
    session = runtime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {session.get_inputs()[0].name: tokens.numpy()})
    assert_near(torch.from_numpy(found), model(tokens))
