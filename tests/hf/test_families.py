"""attach reads many ways of writing a layer: each family starts as the plain model, and its trained queries work."""

from __future__ import annotations

import copy
import pickle
import warnings

import pytest
import torch
import transformers
from packaging.version import Version
from torch import nn

import attnres.hf
from attnres import UsageError
from attnres.hf.layer import attached_layers
from tests.depth import randomise
from tests.hf.models import CONFIGS, assert_decodes_as_whole, assert_near, make_model, recompute
from tests.hf.small import small_inputs, small_model, spread_weights

CAUSAL, MASKED, IMAGES = "AutoModelForCausalLM", "AutoModelForMaskedLM", "AutoModelForImageClassification"

# name: type, class, options, sublayers of four layers, whether sublayers return what they change
FAMILIES: dict[str, tuple] = {
    **{name: (name, CAUSAL, None, 8, False) for name in CONFIGS},  # as in models.py
    "opt": ("opt", CAUSAL, {}, 8, False),
    "opt, post-norm": ("opt", CAUSAL, {"do_layer_norm_before": False}, 8, True),
    "falcon": ("falcon", CAUSAL, {}, 4, False),
    "falcon, sequential": ("falcon", CAUSAL, {"parallel_attn": False, "alibi": True}, 8, False),
    "falcon, two norms": ("falcon", CAUSAL, {"new_decoder_architecture": True, "num_kv_heads": 2}, 4, False),
    "gpt_neox": ("gpt_neox", CAUSAL, {}, 4, False),
    "gpt_neox, sequential": ("gpt_neox", CAUSAL, {"use_parallel_residual": False}, 8, False),
    "bloom": ("bloom", CAUSAL, {}, 8, False),
    "bloom, residual after the norm": ("bloom", CAUSAL, {"apply_residual_connection_post_layernorm": True}, 8, True),
    "llama4_text": ("llama4_text", CAUSAL, {}, 8, False),
    "glm_moe_dsa": ("glm_moe_dsa", CAUSAL, {}, 8, False),
    "minimax": ("minimax", CAUSAL, {"full_attn_alpha_factor": 2.5, "mlp_beta_factor": 0.5}, 8, True),
    "lfm2": ("lfm2", CAUSAL, {}, 8, False),
    "nemotron_h": ("nemotron_h", CAUSAL, {}, 4, False),
    "gemma4_text": ("gemma4_text", CAUSAL, {}, 12, True),
    "bert": ("bert", MASKED, {}, 8, True),
    "modernbert": ("modernbert", MASKED, {}, 8, False),
    "vit": ("vit", IMAGES, {}, 8, False),
}

# One of each kind: dense, sliding windows, experts, tied, a state beside the cache; sublayers side by side or not, as
# the configuration says; a sum inside a sublayer, something returned beside the hidden states, three sublayers per
# layer, an encoder, pixels.
KINDS = {
    *("llama", "gemma3_text", "qwen3_moe", "gpt2", "kimi_linear"),
    *("falcon", "falcon, sequential", "bloom", "glm_moe_dsa", "gemma4_text", "bert", "vit"),
}
EACH = [pytest.param(name, marks=[] if name in KINDS else pytest.mark.slow) for name in FAMILIES]
_made: dict[str, nn.Module] = {}


def family(name):
    model_type, auto_class, options, *_ = FAMILIES[name]
    if model_type == "opt" and Version(transformers.__version__) < Version("5.24"):
        pytest.skip("opt's decoder asks there for each layer whether to leave it out, whatever its options")
    if options is None:
        return make_model(name)
    if name not in _made:
        _made[name] = small_model(model_type, auto_class, **options)
        spread_weights(_made[name])
        for module in _made[name].modules():
            if "layer_scalar" in module._buffers:  # gemma4's, which is one before training
                module.layer_scalar.fill_(0.8)
    return copy.deepcopy(_made[name])


@pytest.mark.parametrize("name", EACH)
def test_starts_as_the_plain_model(name, caplog):
    """A block of three ends inside a layer, and the last one is not full. The same logits, at every depth."""
    model = family(name)
    inputs = small_inputs(model)
    with torch.no_grad():
        expected = model(inputs, output_hidden_states=True)
        found = attnres.hf.attach(model, "block:block_size=3")(inputs, output_hidden_states=True)
    # Plain gemma4_text in float32 differs by more than 1e-5 from itself in float64.
    share = 1e-4 if name == "gemma4_text" else 1e-5
    assert_near(found.logits, expected.logits, share)
    assert_near(found.hidden_states, expected.hidden_states, share)
    assert attnres.hf.connection_of(model).sublayers == FAMILIES[name][3]
    assert ("what each sublayer changes" in caplog.text) == FAMILIES[name][4]


@pytest.mark.parametrize("name", sorted(KINDS))
def test_trained_queries_depth_matrix_cache_and_gradients(name):
    model = attnres.hf.attach(family(name), "block", block_size=3)
    connection = attnres.hf.connection_of(model)
    randomise(connection)
    inputs = small_inputs(model)
    model(inputs).logits.square().mean().backward()
    assert min(query.grad.norm() for query in connection.query[1:]) > 0
    matrix = attnres.hf.mixing_matrix(model, inputs)
    assert matrix.shape[-2:] == (connection.sublayers + 1,) * 2 and matrix.triu(1).abs().max() == 0
    # h = n sum p v with weights of a softmax; a block's weight stands at each of its members.
    sources = 1 + (torch.arange(connection.sublayers + 1) + 2) // 3
    distinct = matrix[..., 0] + matrix[..., 1::3].sum(-1)
    torch.testing.assert_close(distinct, sources.expand_as(distinct).float(), rtol=1e-4, atol=1e-4)
    if FAMILIES[name][1] == CAUSAL:
        assert_decodes_as_whole(model, inputs[:, :6])


@pytest.mark.parametrize("name", ["llama", "gemma3_text"])
def test_a_read_takes_the_norm_in_unless_somebody_listens_to_it(name):
    """The same logits and gradients, those of the norm's weight too; in bfloat16 no further from float32. A decode step
    looks for listeners at its first layer, and so anew for every token."""
    model = attnres.hf.attach(family(name), "block", block_size=3)
    randomise(attnres.hf.connection_of(model))
    inputs, heard = small_inputs(model), []
    norms = [layer._modules[piece.norm] for layer in attached_layers(model) for piece in layer._code.pieces]

    def logits_and_gradients():
        model.zero_grad()
        logits = model(inputs).logits
        logits.float().square().mean().backward()
        return {"logits": logits.detach(), **{name: p.grad for name, p in model.named_parameters()}}

    def decode_step():
        with torch.no_grad():
            return model(inputs[:1, :2]).logits

    def bfloat16_logits():
        with torch.no_grad():
            return copy.deepcopy(model).bfloat16()(inputs).logits.float()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(norms[0]), "__call__", lambda norm, x: heard.append(norm) or norm.forward(x))
        found, step = logits_and_gradients(), decode_step()
        assert not {*heard} & {*norms}
    rounded = bfloat16_logits()
    for norm in norms:
        norm.register_forward_hook(lambda norm, *_: heard.append(norm))
    expected = logits_and_gradients()
    assert {*heard} >= {*norms}
    heard.clear()
    assert_near(decode_step(), step, 1e-5)
    assert {*heard} >= {*norms}
    assert_near(found["logits"], expected["logits"], 1e-5)
    assert_near(found, expected)
    exact = expected["logits"]
    assert (rounded - exact).norm() <= 1.05 * (bfloat16_logits() - exact).norm()


@pytest.mark.parametrize(
    ("name", "reentrant"),
    [
        ("qwen3_moe", True),
        ("glm_moe_dsa", False),
        ("gemma4_text", True),
    ],
)
def test_recomputation_changes_no_gradient(name, reentrant):
    """Of layers that return more than their hidden states, and take more that has a gradient, too."""
    model = attnres.hf.attach(family(name), "block", block_size=3).train()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    randomise(attnres.hf.connection_of(model))
    inputs, passes = small_inputs(model), []
    linear = next(module for module in attached_layers(model)[0].modules() if isinstance(module, nn.Linear))
    linear.register_forward_hook(lambda *_: passes.append(1))

    def gradients():
        model.zero_grad()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # reentrant checkpointing speaks of inputs without a gradient
            model(inputs).logits.square().mean().backward()
        return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}

    expected = gradients()
    recompute(model, {"use_reentrant": reentrant})
    model.enable_input_require_grads()
    assert_near(gradients(), expected)
    assert len(passes) == 3, "the layer ran once without recomputation and twice with it"


@pytest.mark.parametrize("name", ["llama", "opt"])
def test_copies_and_pickles(name):
    """OPT's decoder has a class that transformers does not export."""
    model = attnres.hf.attach(family(name), "full")
    randomise(attnres.hf.connection_of(model))
    inputs = small_inputs(model)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert_near(twin(inputs).logits, model(inputs).logits)
        nn.init.zeros_(attnres.hf.connection_of(twin).query[3])
        assert (twin(inputs).logits - model(inputs).logits).abs().max() > 1e-2 * model(inputs).logits.abs().max()


@pytest.mark.parametrize("name", ["falcon", "gemma4_text"])
def test_a_rule_of_layers_of_two_sublayers_is_refused_for_others(name):
    """Two layers would count as one, or the halves of one as two, and nothing at the start would show it."""
    model = family(name)
    before = type(model)
    with pytest.raises(UsageError, match=r"layers of two sublayers, .* has [13]"):
        attnres.hf.attach(model, "interlayer")
    assert type(model) is before and type(attnres.hf.attach(model, "block")) is not before
