"""q, k and v, gate and up with mixtures of their own, in the model's own code."""

from __future__ import annotations

import pickle

import pytest
import torch

import attnres.hf
from attnres import Connection
from attnres.model.backbones.borrowed import cache_name
from tests.depth import randomise
from tests.hf.models import assert_near, make_model, make_tokens, recompute
from tests.hf.small import small_inputs


@pytest.mark.parametrize(
    ("name", "connection"), [("llama", "block:block_size=3"), ("gemma3_text", "delta:block_size=2")]
)
@torch.no_grad()
def test_starts_as_the_plain_model(name, connection):
    model = make_model(name)
    tokens = small_inputs(model)
    plain = model(tokens, output_hidden_states=True)
    attached = attnres.hf.attach(model, connection, reads="qkv-gate-up")(tokens, output_hidden_states=True)
    assert_near(attached.logits, plain.logits, 1e-5)
    assert_near(attached.hidden_states, plain.hidden_states, 1e-5)


@pytest.mark.parametrize("name", ["gemma3_text", "olmo2"])
def test_each_projection_reads_its_own_mixture(name):
    """Against hooks on the plain model's projections, which see what the layer's own norm makes of each mixture."""
    model, tokens = make_model(name).double(), make_tokens()
    attnres.hf.attach(model, "full", reads="qkv-gate-up").double()
    connection = attnres.hf.connection_of(model)
    randomise(connection)
    seen = {}
    for index, layer in enumerate(model.model.layers):
        for part, names in ((layer.self_attn, ("q_proj", "k_proj", "v_proj")), (layer.mlp, ("gate_proj", "up_proj"))):
            for place, projection in enumerate(names):
                key = (2 * index + (part is layer.mlp), place)
                getattr(part, projection).register_forward_pre_hook(
                    lambda _, args, key=key: seen.__setitem__(key, args[0])
                )
    _, embedding, sublayers = attnres.hf.unroll(model, tokens)
    with torch.no_grad():
        values = connection.start(embedding)
        for site, sublayer in enumerate(sublayers):
            reads = Connection.mix(connection, values, site)[1]
            y = sublayer(*reads)
            layer = model.model.layers[site // 2]
            norm = getattr(layer, ("input_layernorm", "post_attention_layernorm")[site % 2], None)
            if name == "gemma3_text" and site % 2:
                norm = layer.pre_feedforward_layernorm
            for place, read in enumerate(reads):
                assert_near(seen[site, place], read if name == "olmo2" else norm(read), 1e-6)
            assert not torch.allclose(seen[site, 0], seen[site, 1]) or site == 0
            values = connection.absorb(values, None, site, reads, y)


def test_trained_decoding_saving_pickling_and_gradients(tmp_path):
    model, tokens = attnres.hf.attach(make_model("qwen3"), "block", block_size=3, reads="qkv-gate-up"), make_tokens()
    randomise(attnres.hf.connection_of(model))
    with torch.no_grad():
        whole = model(tokens, use_cache=False).logits
        first, name = model(tokens[:, :6], use_cache=True), cache_name(model)
        rest = model(tokens[:, 6:], **{name: first[name]}, use_cache=True).logits
    assert_near(torch.cat([first.logits, rest], 1), whole)
    model.save_pretrained(tmp_path)
    for twin in (attnres.hf.load(tmp_path).eval(), pickle.loads(pickle.dumps(model))):
        with torch.no_grad():
            assert_near(twin(tokens, use_cache=False).logits, whole)
    assert type(model.model.layers[0].self_attn).__name__ == "Qwen3Attention"

    def gradients():
        model.zero_grad()
        model(tokens, labels=tokens, use_cache=False).loss.backward()
        return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}

    model.train()
    plain = gradients()
    recompute(model)
    assert_near(gradients(), plain)
    assert attnres.hf.connection_of(model).query[2].grad.norm(dim=-1).min() > 0
