"""One text through depth: the picture against the model's own forward pass, and what closes exactly."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
import transformers

import attnres.hf
from attnres import Transformer, TransformerConfig, mixing_matrix
from attnres.analysis import Mute, Noise, Off, Patch, Scale, intervene
from attnres.analysis.tracing import explain, removal_effects, trace
from tests.depth import in_blocks, randomise
from tests.hf.models import make_model
from tests.kimi_k3.small import small_k3

TEXT = [3, 5, 1, 8, 8, 2, 13]


def lab(connection: str, layers: int = 3, dim: int = 8, **options) -> Transformer:
    config = TransformerConfig(
        vocab_size=16, dim=dim, layers=layers, heads=2, context=24, connection=in_blocks(connection), **options
    )
    model = Transformer(config).eval()
    randomise(model.connection)
    with torch.no_grad():
        model.norm.weight.uniform_(0.5, 2)
    return model


def attached(name: str):
    model = attnres.hf.attach(make_model(name), "block", block_size=3)
    randomise(attnres.hf.connection_of(model))
    return model


def own_logits(model) -> torch.Tensor:
    with torch.no_grad():
        out = model(torch.tensor([TEXT]))
    return (out if isinstance(out, torch.Tensor) else out.logits)[0]


@pytest.mark.parametrize(
    ("connection", "tied"), [("block", True), ("hc", False), ("highway", False), ("postnorm", True)]
)
def test_a_trace_closes(connection, tied):
    model = lab(connection, tied=tied)
    traced = trace(model, TEXT)
    torch.testing.assert_close(traced.logits, own_logits(model), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(traced.weights, mixing_matrix(model, torch.tensor([TEXT]))[0], rtol=1e-4, atol=1e-5)
    told = explain(model, traced, 4, target=2)
    assert told.rest.abs().max() < 1e-5
    torch.testing.assert_close(told.weights, traced.weights[4])
    torch.testing.assert_close(told.logits[-1], traced.logits[4], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(told.shares[-1].sum(), traced.logits[4, 2], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("kind", "width"), [("cohere", 32), ("olmo", 40), ("nemotron", 32)])
def test_final_norms_that_subtract_the_mean_or_write_their_gain_otherwise(kind, width):
    sizes = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4, "intermediate_size": 48}
    config = transformers.AutoConfig.for_model(kind, vocab_size=16, hidden_size=width, pad_token_id=None, **sizes)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    norm, head = model.model.norm, model.lm_head.weight.detach().double()
    with torch.no_grad():
        for parameter in norm.parameters():
            parameter.uniform_(0.5, 2)
    attnres.hf.attach(model, "residual")
    traced = trace(model, TEXT)
    told = explain(model, traced, 4, 2)
    sources = traced.sources[:, 4].double()
    h = sources.sum(0)
    deviation = (h.var(unbiased=False) + 1e-5).sqrt()
    gain = {"cohere": lambda: norm.weight, "olmo": lambda: 1.0, "nemotron": lambda: norm.weight + 1}[kind]()
    row = head[2] * getattr(config, "logit_scale", 1.0) * torch.as_tensor(gain).detach().double()
    shares = ((sources - sources.mean(-1, keepdim=True)) * row).sum(-1) / deviation
    torch.testing.assert_close(told.shares[-1].double(), shares, rtol=1e-4, atol=1e-5)
    bias = (norm.bias.double() * head[2]).sum().item() if kind == "nemotron" else 0.0
    assert told.rest[-1].item() == pytest.approx(bias, abs=1e-5)


@pytest.mark.parametrize("name", ["llama", "gemma3_text", "gpt2", "kimi_k3"])
def test_final_norms_of_every_kind_close(name):
    model = small_k3() if name == "kimi_k3" else attached(name)
    traced = trace(model, TEXT)
    rounding = 1e-3 * traced.logits.std().item()  # in float32, of models whose norms magnify a small embedding
    torch.testing.assert_close(traced.logits, own_logits(model), rtol=0, atol=rounding)
    told = explain(model, traced, 4, target=2)
    torch.testing.assert_close(told.logits[-1], traced.logits[4], rtol=0, atol=rounding)
    assert told.rest.abs().max() < rounding


def test_shares_are_the_terms_of_the_logit_written_out():
    model, changes = lab("full"), [Scale(2, by=2.0), Mute(0, sites=6), Patch(3, prompt=(4, 4, 4, 4, 4), sites=6)]
    traced = trace(model, TEXT, changes)
    told = explain(model, traced, 4, 2, changes)
    patch = trace(model, [4, 4, 4, 4, 4]).sources[3, 4]
    with torch.no_grad():
        vectors = [patch if i == 3 else v for i, v in enumerate(traced.sources[:, 4])]
        h = sum(w * v for w, v in zip(traced.weights[4, 6], vectors, strict=True))
        scale = (h.square().mean() + 1e-6).rsqrt() * model.norm.weight * model.head.weight[2]
        expected = [float((scale * w * v).sum()) for w, v in zip(traced.weights[4, 6], vectors, strict=True)]
        sizes = [float((w * v).square().mean().sqrt()) for w, v in zip(traced.weights[4, 6], vectors, strict=True)]
    assert told.shares[6].tolist() == pytest.approx(expected, abs=1e-5) and expected[0] == 0
    assert told.sizes[6].tolist() == pytest.approx(sizes, abs=1e-5)
    assert told.rest.abs().max() < 1e-5


def test_the_lens_is_the_readout_of_what_a_site_reads():
    model, inputs = lab("block"), []
    traced = trace(model, TEXT)
    for sublayer in model.sublayers:
        sublayer.register_forward_pre_hook(lambda _, args: inputs.append(args[0][0, 4]))
    own_logits(model)
    with torch.no_grad():
        expected = model.logits(torch.stack(inputs))
    torch.testing.assert_close(explain(model, traced, 4, 2).logits[:-1], expected, rtol=1e-4, atol=1e-5)


def test_a_cap_on_the_logits_is_left_as_the_rest():
    model = attnres.hf.attach(make_model("gemma3_text", final_logit_softcapping=0.01), "block")
    told = explain(model, traced := trace(model, TEXT), 4, 2)
    torch.testing.assert_close(told.logits[-1], traced.logits[4], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(told.shares.sum(-1) + told.rest, told.logits[:, 2])


def test_reads_are_told_apart():
    model = lab("delta:reads=qkv")
    matrix = mixing_matrix(model, torch.tensor([TEXT]), per_read=True)[0]
    for read in range(3):
        traced = trace(model, TEXT, read=read)
        torch.testing.assert_close(traced.weights, matrix[:, read], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(explain(model, traced, 4, 2, read=read).weights, traced.weights[4])
    assert not torch.allclose(matrix[:, 0], matrix[:, 2])


def test_what_removing_a_source_costs():
    model, held = lab("full"), [Off(2)]

    def loss(*changes) -> float:
        with torch.no_grad(), intervene(model, *held, *changes):
            return float(F.cross_entropy(own_logits(model)[:-1], torch.tensor(TEXT[1:])))

    (effect,) = removal_effects(model, TEXT, [3], held, sites=(4, 6), at=(1, 2), seeds=2)
    assert effect.source == 3
    assert effect.removed == pytest.approx(loss(Mute(3, (4, 6), (1, 2))) - loss(), abs=1e-6)
    assert effect.random == pytest.approx([loss(Noise(3, s, (4, 6), (1, 2))) - loss() for s in (0, 1)], abs=1e-6)
    assert abs(effect.removed) > 1e-4 and effect.random[0] != effect.random[1]


def test_dropout_is_off_whatever_mode_the_model_is_in():
    """Its noise is as large as effects are."""
    config = transformers.GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0)
    model = attnres.hf.attach(transformers.GPT2LMHeadModel(config), "block").train()
    model.transformer.drop.eval()
    modes = [module.training for module in model.modules()]
    swap = [Patch(2, prompt=[7, 7, 1])]
    noisy = next(removal_effects(model, TEXT, [2], seeds=1)), trace(model, TEXT, swap).logits
    assert [module.training for module in model.modules()] == modes and True in modes and False in modes
    with pytest.raises(ZeroDivisionError):
        trace(model, TEXT, on_site=lambda site: site // (site - site))
    assert [module.training for module in model.modules()] == modes
    model.eval()
    assert noisy[0] == next(removal_effects(model, TEXT, [2], seeds=1))
    assert torch.equal(noisy[1], trace(model, TEXT, swap).logits)
