"""What the Transformers backends of vLLM and SGLang ask of a model, asked by a stand-in that makes the same calls.

Read from vLLM's model_executor/models/transformers/base.py and SGLang's srt/models/transformers.py, November 2026. A
real vLLM: tests/engines.
"""

from __future__ import annotations

import contextlib
import inspect
import re

import pytest
import torch
import transformers
from safetensors.torch import load_file
from torch import nn
from transformers import AutoConfig, AutoModel
from transformers.dynamic_module_utils import get_class_from_dynamic_module
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from attnres import UsageError
from attnres.hf import connection_of
from tests.hf.models import assert_near, make_tokens


class TheirNorm(nn.Module):
    """An engine's own norm: one tensor in, or a tensor and a residual to add."""

    def __init__(self, norm):
        super().__init__()
        self.weight, self.eps = norm.weight, norm.variance_epsilon

    def forward(self, x, residual=None):
        assert isinstance(x, torch.Tensor) and residual is None
        return nn.functional.rms_norm(x, x.shape[-1:], self.weight, self.eps)


class TheirLinear(nn.Module):
    def __init__(self, linear):
        super().__init__()
        self.weight, self.style = linear.weight, "replicate"

    def forward(self, x):
        return x @ self.weight.mT


@contextlib.contextmanager
def on_meta_without_buffers():
    """Parameters go to meta as soon as they are registered; buffers stay."""
    register = nn.Module.register_parameter

    def register_empty(module, name, param):
        register(module, name, param)
        if param is not None:
            module._parameters[name] = nn.Parameter(module._parameters[name].to("meta"), param.requires_grad)

    nn.Module.register_parameter = register_empty
    try:
        yield
    finally:
        nn.Module.register_parameter = register


class Engine:
    """The backend's steps, in its order, in bfloat16 unless told otherwise."""

    def __init__(self, path, dtype=torch.bfloat16, stages=1):
        self.config = AutoConfig.from_pretrained(path, trust_remote_code=True)
        assert self.model_class(path).is_backend_compatible()
        self.config._attn_implementation = "engine"
        self.config.dtype = dtype
        arguments = {"config": self.config, "dtype": dtype, "trust_remote_code": True}
        with torch.device("meta"):
            decoder_class = type(AutoModel.from_config(**arguments).get_decoder())
        # The class is compiled with these axes of its arguments dynamic.
        assert {"input_ids", "inputs_embeds", "position_ids"} <= inspect.signature(
            decoder_class.forward
        ).parameters.keys()
        with on_meta_without_buffers():
            self.model = AutoModel.from_config(**arguments)
        assert type(self.model) is decoder_class
        if stages > 1 and not self.model.supports_pp_plan:
            del self.model.connection  # vLLM keeps the layers and the last parts on the stages that have them
        self.replaced = self.replace(self.model, "")
        self.make_parameters(self.model, dtype)
        self.instances = {index: [] for index in range(self.config.num_hidden_layers)}

    def model_class(self, path):
        """The class is sought in transformers, then in the code that config.json names."""
        sought = getattr(transformers, self.config.architectures[0], None)
        named = get_class_from_dynamic_module(self.config.auto_map["AutoModel"], path)
        assert sought is not None and issubclass(named, AutoModel._model_mapping[type(self.config)])
        return named

    def replace(self, module, prefix):
        replaced = {}
        plan = self.model.tp_plan
        for name, child in list(module.named_children()):
            path = f"{prefix}.{name}".lstrip(".")
            if isinstance(child, nn.Linear):
                new = TheirLinear(child)
                new.style = next(
                    (s for p, s in plan.items() if re.fullmatch(p.replace("*", r"\d+"), path)), "replicate"
                )
            elif type(child).__name__.endswith("RMSNorm"):
                new = TheirNorm(child)
            else:
                replaced |= self.replace(child, path)
                continue
            setattr(module, name, new)
            replaced[path] = new
        return replaced

    def make_parameters(self, module, dtype):
        for name, param in list(module.named_parameters(recurse=False)):
            if param.is_meta:
                setattr(module, name, nn.Parameter(torch.empty_like(param, dtype=dtype, device="cpu")))
        for child in module.children():
            self.make_parameters(child, dtype)

    def load(self, tensors):
        for name, param in self.model.named_parameters():
            param.data.copy_(tensors.pop(f"model.{name}"))
        assert set(tensors) == {"lm_head.weight"}

    def __call__(self, tokens):
        positions = torch.arange(tokens.shape[0])[None]
        outputs = self.model(
            input_ids=tokens[None],
            inputs_embeds=None,
            use_cache=False,
            position_ids=positions,
            attention_instances=self.instances,
            return_dict=False,
        )
        return outputs[0][0, ...]


def attention(module, query, key, value, mask, scaling=None, attention_instances=None, **kwargs):
    """The engine's attention finds its own cache by the layer's index, in what the model's forward was given."""
    attention_instances[module.layer_idx].append(query.shape)
    groups = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(groups, 1) for x in (key, value))
    y = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scaling)
    return y.transpose(1, 2), None


@pytest.fixture
def engine(monkeypatch):
    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._global_mapping, "engine", attention)
    return Engine


def test_the_engine_computes_the_model(engine, kept):
    tokens = make_tokens(1, 9)[0]
    theirs = engine(str(kept.folder), torch.float32)
    theirs.load(load_file(kept.folder / "model.safetensors"))
    with torch.no_grad():
        found, expected = theirs(tokens), kept.model.model(tokens[None]).last_hidden_state[0]
    assert_near(found, expected)
    assert all(len(calls) == 1 for calls in theirs.instances.values())


def test_norms_and_projections_are_the_engine_s_and_the_connection_s_parameters_stay_float32(engine, kept):
    theirs = engine(str(kept.folder))
    assert "norm" in theirs.replaced and "layers.1.input_layernorm" in theirs.replaced
    assert not any("connection" in name for name in theirs.replaced)
    assert theirs.replaced["layers.0.self_attn.q_proj"].style == "colwise"
    kinds = {name: parameter.dtype for name, parameter in theirs.model.named_parameters()}
    assert {dtype for name, dtype in kinds.items() if not name.startswith("connection")} == {torch.bfloat16}
    theirs.load(load_file(kept.folder / "model.safetensors"))
    pairs = zip(connection_of(kept.model).parameters(), connection_of(theirs.model).parameters(), strict=True)
    assert all(torch.equal(mine, loaded) for mine, loaded in pairs)
    found = theirs(make_tokens(1, 9)[0])
    assert found.dtype == torch.bfloat16 and found.isfinite().all()


def test_a_pipeline_is_refused(engine, kept):
    with pytest.raises(UsageError, match="cannot be cut into stages"):
        engine(str(kept.folder), stages=2)
    # An engine that splits all the same hands the second stage hidden states alone.
    theirs = engine(str(kept.folder))
    theirs.model.layers[0] = nn.Identity()
    theirs.model.layers[0].forward = lambda stream, *args, **kwargs: stream
    with pytest.raises(UsageError, match="an attached model cannot be split between its layers"):
        theirs(make_tokens(1, 9)[0])
