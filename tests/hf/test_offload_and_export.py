"""An attached model whose weights are elsewhere, that is compiled layer by layer, exported or copied."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from accelerate import cpu_offload, dispatch_model, init_empty_weights

import attnres
import attnres.hf
from attnres import UsageError
from tests.depth import randomise
from tests.hf.models import make_model, make_tokens

ON_DISK = {
    **dict.fromkeys(("model.embed_tokens", "model.rotary_emb", "lm_head", "model.layers.3"), "cpu"),
    **dict.fromkeys(("model.layers.0", "model.layers.1", "model.layers.2", "model.norm"), "disk"),
}


def attach(model):
    attnres.hf.attach(model, "block:block_size=3")
    randomise(attnres.hf.connection_of(model))
    return model


def offload(model, way, folder):
    if way == "cpu":
        cpu_offload(model, execution_device=torch.device("cpu"))
    else:
        names = [name for name, _ in model.named_modules()]
        connection = {"model.connection": "disk"} if "model.connection" in names else {}
        dispatch_model(model, {**ON_DISK, **connection}, offload_dir=folder)
    return model


@pytest.mark.parametrize("way", ["cpu", "disk"])
@pytest.mark.parametrize("first", ["attach", "offload"])
def test_offloaded_weights(first, way, tmp_path):
    """accelerate fetches weights when a module's forward is called, and a connection's parts have none."""
    tokens, whole = make_tokens(), attach(make_model("llama"))
    expected, matrix = whole(tokens, output_hidden_states=True), attnres.hf.mixing_matrix(whole, tokens)
    model = make_model("llama")
    model = offload(attach(model), way, tmp_path) if first == "attach" else attach(offload(model, way, tmp_path))
    places = [parameter.device for parameter in model.parameters()]
    found = model(tokens, output_hidden_states=True)
    torch.testing.assert_close(found.logits, expected.logits)
    torch.testing.assert_close(found.hidden_states, expected.hidden_states)
    for of_attached in (attnres.hf.mixing_matrix, attnres.mixing_matrix):
        torch.testing.assert_close(of_attached(model, tokens), matrix)
    assert [parameter.device for parameter in model.parameters()] == places, "what was fetched is given back"


def test_a_folder_is_loaded_over_cpu_and_disk(tmp_path):
    tokens, whole = make_tokens(), attach(make_model("llama"))
    whole.save_pretrained(tmp_path / "model")
    model = attnres.hf.load(tmp_path / "model", device_map=ON_DISK, offload_folder=tmp_path / "offload")
    torch.testing.assert_close(model(tokens).logits, whole(tokens).logits)


def test_a_model_without_weights_is_refused():
    from transformers import AutoModelForCausalLM

    config = make_model("llama").config
    with init_empty_weights():
        model = AutoModelForCausalLM.from_config(config)
        with pytest.raises(UsageError, match="attach outside of it"):
            attnres.hf.attach(model, "block")
    with pytest.raises(UsageError, match="on the meta device; attach to it when they are loaded"):
        attnres.hf.attach(model, "block")
    assert not hasattr(model.model, "connection")


def test_many_layers_are_compiled_one_by_one():
    """torch takes eight graphs of one forward; every layer here reads another number of sources."""
    model, tokens = attach(make_model("llama", num_hidden_layers=10)), make_tokens()
    with torch.no_grad():
        expected = model(tokens, use_cache=False).logits
        for layer in model.model.layers:
            layer.compile(fullgraph=True, backend="eager")
        torch.testing.assert_close(model(tokens, use_cache=False).logits, expected)


@pytest.mark.filterwarnings("ignore")  # the exporter's own
def test_export_to_onnx(tmp_path):
    """From a path, and run by another engine."""
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    from transformers import AutoModelForCausalLM

    attach(make_model("llama", num_hidden_layers=2)).save_pretrained(tmp_path)

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
    torch.testing.assert_close(torch.from_numpy(found), model(tokens), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("make", [make_model, lambda name: attach(make_model(name))], ids=["plain", "attached"])
def test_copies_after_a_pass_that_captured_hidden_states(make):
    """transformers leaves its hooks on the modules: they are copied, and cannot be pickled with any model."""
    model, tokens = make("llama"), make_tokens()
    expected = model(tokens, output_hidden_states=True)
    again = copy.deepcopy(model)(tokens, output_hidden_states=True)
    torch.testing.assert_close(again.logits, expected.logits)
    torch.testing.assert_close(again.hidden_states, expected.hidden_states)
    with pytest.raises(AttributeError, match="output_capturing_hook"):
        pickle.dumps(model)
