"""The connection of an Inkling-2, against the model of transformers that it is."""

from __future__ import annotations

import pytest
import torch

from attnres.hf.readers import RELEASED, Calls
from tests.hf.models import assert_near

INKLING = {
    "vocab_size": 40,
    "unpadded_vocab_size": 40,
    "hidden_size": 16,
    "num_hidden_layers": 5,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "swa_num_attention_heads": 2,
    "swa_num_key_value_heads": 1,
    "swa_head_dim": 8,
    "sliding_window_size": 4,
    "d_rel": 4,
    "rel_extent": 8,
    "moe_intermediate_size": 8,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_layers_per_attn_res_block": 2,
    "eos_token_id": 1,
}


def test_inkling2_is_transformers_model():
    """Its own sublayers between our connection give its own hidden states and gradients."""
    inkling2 = pytest.importorskip("transformers.models.inkling2.modeling_inkling2")
    torch.manual_seed(0)
    config = inkling2.Inkling2TextConfig(**INKLING, layer_types=["hybrid_sliding"] * 5)
    model = inkling2.Inkling2TextModel(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("query"):
                parameter.normal_(std=3.0)
    calls = [{} for _ in model.layers]
    for layer, call in zip(model.layers, calls, strict=True):
        layer.self_attn.register_forward_pre_hook(lambda _, __, kwargs, c=call: c.update(kwargs), with_kwargs=True)
    tokens = torch.randint(0, 40, (2, 7))
    theirs = model(input_ids=tokens, use_cache=False).last_hidden_state

    def attention(layer, call):
        call = {name: value for name, value in call.items() if name != "hidden_states"}
        after = layer.post_attention_convolution
        return lambda h: after(
            layer.self_attn(hidden_states=layer.input_layernorm(h), **call)[0],
            cache=None,
            conv_mask=call["conv_mask"],
        )

    def mlp(layer, call):
        return lambda h: layer.post_mlp_convolution(
            layer.mlp(layer.post_attention_layernorm(h)), cache=None, conv_mask=call["conv_mask"]
        )

    pairs = zip(model.layers, map(dict, calls), strict=True)
    sublayers = [make(layer, call) for layer, call in pairs for make in (attention, mlp)]
    connection = RELEASED["inkling2_text"](model, Calls()).connection
    embedded = model.embed_tokens(tokens)
    ours = model.norm(connection.readout(connection.run(connection.start(embedded), sublayers)))
    assert_near(ours, theirs)

    upstream = torch.randn_like(theirs)
    embedding = model.embed_tokens.weight
    named = {name: parameter for name, parameter in model.named_parameters() if name.endswith("query")}
    expected = torch.autograd.grad(theirs, [embedding, *named.values()], upstream)
    gradients = torch.autograd.grad(ours, [embedding, *list(connection.query)[1:]], upstream)
    assert len(named) == 10 and all(g.abs().max() > 1e-3 for g in expected)
    assert_near(gradients, expected, 1e-3)
