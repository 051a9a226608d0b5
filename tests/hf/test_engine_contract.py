"""What the Transformers backends of vLLM and SGLang ask of a model, asked by a stand-in that makes the same calls.

Read from vLLM's model_executor/models/transformers/base.py and SGLang's srt/models/transformers.py, November 2026. A
real vLLM: tests/engines.
"""

from __future__ import annotations

import contextlib
import inspect

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


def engine(path, dtype):
    """The backend's steps, in its order: a model of that dtype, its norms replaced, with the folder's weights."""
    config = AutoConfig.from_pretrained(path, trust_remote_code=True)
    sought = getattr(transformers, config.architectures[0])  # in transformers, then in the code that config.json names
    named = get_class_from_dynamic_module(config.auto_map["AutoModel"], path)
    assert sought.is_backend_compatible() and issubclass(named, AutoModel._model_mapping[type(config)])
    config._attn_implementation, config.dtype = "engine", dtype
    with on_meta_without_buffers():
        model = AutoModel.from_config(config, dtype=dtype, trust_remote_code=True)
    # The class is compiled with these axes of its arguments dynamic.
    assert {"input_ids", "inputs_embeds", "position_ids"} <= inspect.signature(type(model).forward).parameters.keys()
    assert model.tp_plan["layers.*.self_attn.q_proj"] == "colwise"
    for path_of, norm in [(n, m) for n, m in model.named_modules() if type(m).__name__.endswith("RMSNorm")]:
        model.set_submodule(path_of, TheirNorm(norm))
    for module in model.modules():
        for name, param in list(module.named_parameters(recurse=False)):
            setattr(module, name, nn.Parameter(torch.empty_like(param, dtype=dtype, device="cpu")))
    tensors = load_file(f"{path}/model.safetensors")
    for name, param in model.named_parameters():
        param.data.copy_(tensors.pop(f"model.{name}"))
    assert set(tensors) == {"lm_head.weight"}
    return model


def read(model, tokens, instances):
    positions, given = torch.arange(len(tokens))[None], {"inputs_embeds": None, "use_cache": False}
    return model(
        input_ids=tokens[None], position_ids=positions, attention_instances=instances, return_dict=False, **given
    )[0][0]


def attention(module, query, key, value, mask, scaling=None, attention_instances=None, **kwargs):
    """The engine's attention finds its own cache by the layer's index, in what the model's forward was given."""
    attention_instances[module.layer_idx].append(query.shape)
    groups = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(groups, 1) for x in (key, value))
    y = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scaling)
    return y.transpose(1, 2), None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.no_grad()
def test_the_engine_computes_the_model_with_its_connection_in_float32(dtype, kept, monkeypatch):
    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._global_mapping, "engine", attention)
    model, tokens, instances = engine(str(kept.folder), dtype), make_tokens(1, 9)[0], {0: [], 1: []}
    found, expected = read(model, tokens, instances), kept.model.model(tokens[None]).last_hidden_state[0]
    assert_near(found.float(), expected, 1e-4 if dtype == torch.float32 else 0.1)
    assert found.dtype == dtype and [len(calls) for calls in instances.values()] == [1, 1]
    pairs = zip(connection_of(kept.model).parameters(), connection_of(model).parameters(), strict=True)
    assert all(torch.equal(mine, loaded) for mine, loaded in pairs)
    # An engine asks before it cuts a model into stages; one that cuts all the same hands on hidden states alone.
    with pytest.raises(UsageError, match="cannot be cut into stages"):
        _ = model.supports_pp_plan
    model.layers[0].forward = lambda stream, *args, **kwargs: stream
    with pytest.raises(UsageError, match="an attached model cannot be split between its layers"):
        read(model, tokens, instances)
