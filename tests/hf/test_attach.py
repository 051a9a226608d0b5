"""attach: what a model computes, says and refuses; test_families.py has the ways in which layers are written."""

from __future__ import annotations

import functools

import pytest
import torch
from torch.utils.checkpoint import checkpoint
from transformers import AutoModelForCausalLM

import attnres.hf
from attnres import UsageError, connection_names
from attnres.connections.start import difference_at_start
from tests.depth import randomise
from tests.hf.models import assert_near, make_model, make_tokens

EXACT = {
    *("residual", "x0", "denseformer", "block", "full", "delta", "interlayer"),
    *("rms-block", "rms-full", "rms-residual", "wide", "altup"),
}
QUICK = {"full", "delta", "highway", "mhc-lite"}  # mhc-lite has tables that no checkpoint holds
EACH = [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in connection_names()]


@pytest.mark.parametrize("name", EACH)
def test_every_connection_starts_as_it_says_and_is_saved(name, caplog, tmp_path):
    model, tokens = make_model("llama"), make_tokens()
    with torch.no_grad():
        plain = model(tokens).logits
    if name in ("postnorm", "rezero", "gated-residual"):
        with pytest.raises(UsageError, match="sublayers without a norm"):
            attnres.hf.attach(model, name)
        return
    # Eight sublayers are all in sight of a window of eight.
    attnres.hf.attach(model, "window:window=4" if name == "window" else name)
    with torch.no_grad():
        logits = model(tokens).logits
    same = torch.allclose(logits, plain, rtol=0, atol=1e-5 * plain.abs().max().item())
    assert (difference_at_start(attnres.hf.connection_of(model)) == "") == (name in EXACT)
    assert same or name not in EXACT
    assert ("does not start as the plain residual" in caplog.text) == (name not in EXACT)
    randomise(attnres.hf.connection_of(model))
    model.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert_near(again(tokens).logits, model(tokens).logits)


@pytest.mark.parametrize(("name", "layers"), [("interlayer", 4), ("hc", 1)])
def test_hidden_states_are_what_each_layer_reads(name, layers):
    """The first layer's too, which not by every rule is the embedding."""
    plain, tokens, read = make_model("llama", num_hidden_layers=layers), make_tokens(), []
    model = attnres.hf.attach(plain, name)
    randomise(attnres.hf.connection_of(model))
    model.set_attn_implementation("eager")  # the others return no attention weights
    for layer in model.model.layers:
        layer.input_layernorm.register_forward_pre_hook(lambda _, args: read.append(args[0]))
    with torch.no_grad():
        outputs = model(tokens, output_hidden_states=True, output_attentions=True)
    assert len(outputs.hidden_states) == layers + 1 and len(outputs.attentions) == layers
    assert_near(outputs.hidden_states[:-1], read)
    assert_near(model.lm_head(outputs.hidden_states[-1]), outputs.logits)


def test_against_sublayers_written_by_hand():
    """An oracle that shares no code with attach: AttnRes in float64 by its definition, around llama's own modules."""
    model, tokens = make_model("llama").double(), make_tokens()
    attnres.hf.attach(model, "full", eps=1e-6).double()
    connection = attnres.hf.connection_of(model)
    randomise(connection)
    decoder = model.model
    with torch.no_grad():
        x = decoder.embed_tokens(tokens)
        positions = torch.arange(tokens.shape[1])[None]
        angles = decoder.rotary_emb(x, positions)
        mask = torch.full((tokens.shape[1],) * 2, float("-inf")).triu(1)[None, None].double()
        sources = [x]

        def read(site):
            keys = torch.stack([v * (v.square().mean(-1, keepdim=True) + 1e-6).rsqrt() for v in sources])
            scores = (keys * connection.gain[site] * connection.query[site]).sum(-1, keepdim=True)
            return len(sources) * (scores.softmax(0) * torch.stack(sources)).sum(0)

        for index, layer in enumerate(decoder.layers):
            attention, _ = layer.self_attn(layer.input_layernorm(read(2 * index)), angles, mask)
            sources.append(attention)
            sources.append(layer.mlp(layer.post_attention_layernorm(read(2 * index + 1))))
        h = read(8)
        weight = decoder.norm.weight
        expected = model.lm_head(weight * h * (h.square().mean(-1, keepdim=True) + model.config.rms_norm_eps).rsqrt())
        assert_near(model(tokens).logits, expected, 1e-6)


def replaced(part):
    """A model in which the forward of a module is another on the instance, as of one's own checkpointing."""

    def spoil(model):
        module = model.get_submodule(part)
        module.forward = functools.partial(checkpoint, module.forward, use_reentrant=False)
        return model

    return spoil


def louder(method):
    """A model with a layer of a class that wraps a method of its own."""

    def spoil(model):
        layer = model.model.layers[0]
        cls = type(layer)

        @functools.wraps(getattr(cls, method))
        def twice(self, *args, **kwargs):
            return 2 * getattr(super(type(self), self), method)(*args, **kwargs)

        layer.__class__ = type(cls.__name__, (cls,), {method: twice})
        return model

    return spoil


def tied(model):
    model.model.layers[2].mlp.up_proj.weight = model.model.layers[1].mlp.up_proj.weight
    return model


@pytest.mark.parametrize(
    ("spoil", "arguments", "message"),
    [
        (replaced("model.layers.2"), {}, "DecoderLayer was replaced by checkpoint; attach first"),
        (replaced("model.layers.3.mlp"), {"reads": "qkv-gate-up"}, "LlamaMLP was replaced by checkpoint"),
        (louder("forward"), {}, "LlamaDecoderLayer.forward is wrapped by .*twice"),
        (louder("__call__"), {}, "has a __call__ of its own, which would be"),
        (tied, {}, "layers 1 and 2 share mlp.up_proj.weight"),
        (lambda model: attnres.hf.attach(model, "full"), {}, "already has a connection"),
    ],
)
def test_refused_and_left_as_it_was(spoil, arguments, message):
    model = spoil(make_model("llama"))
    names, classes = [n for n, _ in model.named_parameters()], [type(m) for m in model.modules()]
    with pytest.raises(UsageError, match=message) as refused:
        attnres.hf.attach(model, **arguments)
    assert "\n" not in str(refused.value)
    assert names == [n for n, _ in model.named_parameters()] and classes == [type(m) for m in model.modules()]


def test_after_attach_the_connection_has_the_rate_of_the_weights():
    model = attnres.hf.attach(make_model("gpt2"), "block", block_size=2)
    groups = {group["name"]: group for group in attnres.hf.param_groups(model, 1e-4)}
    assert {id(p) for p in groups["connection"]["params"]} == {*map(id, attnres.hf.connection_of(model).parameters())}
    assert groups["connection"]["lr"] == 1e-4
