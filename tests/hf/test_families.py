"""attach reads many ways of writing a layer: each family starts as the plain model, at every block size."""

from __future__ import annotations

import copy
import pickle
import warnings

import pytest
import torch
from torch import nn

import attnres.hf
from attnres import UsageError
from attnres.hf.code import read_layer
from attnres.hf.small import small_inputs, small_model, spread_weights
from tests.depth import randomise
from tests.hf.test_attach import greedy

CAUSAL, MASKED, IMAGES = "AutoModelForCausalLM", "AutoModelForMaskedLM", "AutoModelForImageClassification"

# name: type, class, options, sublayers of four layers, whether sublayers return what they change
FAMILIES: dict[str, tuple] = {
    "opt": ("opt", CAUSAL, {}, 8, False),
    "opt, post-norm": ("opt", CAUSAL, {"do_layer_norm_before": False}, 8, True),
    "falcon": ("falcon", CAUSAL, {}, 4, False),
    "falcon, sequential": ("falcon", CAUSAL, {"parallel_attn": False, "alibi": True}, 8, False),
    "falcon, two norms": ("falcon", CAUSAL, {"new_decoder_architecture": True, "num_kv_heads": 2}, 4, False),
    "gpt_neox": ("gpt_neox", CAUSAL, {}, 4, False),
    "gpt_neox, sequential": ("gpt_neox", CAUSAL, {"use_parallel_residual": False}, 8, False),
    "gptj": ("gptj", CAUSAL, {}, 4, False),
    "phi": ("phi", CAUSAL, {}, 4, False),
    "bloom": ("bloom", CAUSAL, {}, 8, False),
    "bloom, residual after the norm": ("bloom", CAUSAL, {"apply_residual_connection_post_layernorm": True}, 8, True),
    "mpt": ("mpt", CAUSAL, {}, 8, False),
    "stablelm": ("stablelm", CAUSAL, {}, 8, False),
    "stablelm, parallel": ("stablelm", CAUSAL, {"use_parallel_residual": True}, 4, False),
    "cohere": ("cohere", CAUSAL, {}, 4, False),
    "llama4_text": ("llama4_text", CAUSAL, {}, 8, False),
    "glm_moe_dsa": ("glm_moe_dsa", CAUSAL, {}, 8, False),
    "minimax": ("minimax", CAUSAL, {"full_attn_alpha_factor": 2.5, "mlp_beta_factor": 0.5}, 8, True),
    "lfm2": ("lfm2", CAUSAL, {}, 8, False),
    "nemotron_h": ("nemotron_h", CAUSAL, {}, 4, False),
    "gemma4_text": ("gemma4_text", CAUSAL, {}, 12, True),
    "bert": ("bert", MASKED, {}, 8, True),
    "roberta": ("roberta", MASKED, {}, 8, True),
    "modernbert": ("modernbert", MASKED, {}, 8, False),
    "vit": ("vit", IMAGES, {}, 8, False),
    "dinov2": ("dinov2", IMAGES, {}, 8, False),
}
_made: dict[str, nn.Module] = {}


def family(name):
    if name not in _made:
        model_type, auto_class, options, *_ = FAMILIES[name]
        _made[name] = small_model(model_type, auto_class, **options)
        spread_weights(_made[name])
        for module in _made[name].modules():
            if "layer_scalar" in module._buffers:  # gemma4's, which is one before training
                module.layer_scalar.fill_(0.8)
    return copy.deepcopy(_made[name])


@pytest.mark.parametrize("name", FAMILIES)
def test_lossless(name, caplog):
    plain, (_, auto_class, _, sites, changes) = family(name), FAMILIES[name]
    inputs = small_inputs(plain)
    with torch.no_grad():
        expected = plain(inputs, output_hidden_states=True)
    scale = expected.logits.abs().max()
    for connection in ("full", *(f"block:block_size={size}" for size in range(1, sites + 1))):
        model = attnres.hf.attach(family(name), connection)
        with torch.no_grad():
            found = model(inputs, output_hidden_states=True)
        torch.testing.assert_close(found.logits / scale, expected.logits / scale, rtol=0, atol=1e-5)
        for mine, theirs in zip(found.hidden_states, expected.hidden_states, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5 * theirs.abs().max().item())
        if auto_class == CAUSAL and connection in ("full", "block:block_size=3"):
            assert torch.equal(greedy(model, inputs), greedy(plain, inputs))
    assert attnres.hf.connection_of(model).sites == sites
    assert ("what each sublayer changes" in caplog.text) == changes


@pytest.mark.parametrize("name", FAMILIES)
def test_depth_matrix_cache_and_gradients(name):
    model = attnres.hf.attach(family(name), "block", block_size=3)
    connection = attnres.hf.connection_of(model)
    randomise(connection)
    inputs = small_inputs(model)
    whole = model(inputs)
    whole.logits.square().mean().backward()
    assert min(query.grad.norm() for query in connection.query[1:]) > 0
    matrix = attnres.hf.mixing_matrix(model, inputs)
    assert matrix.shape[-2:] == (connection.sites + 1,) * 2 and matrix.triu(1).abs().max() == 0
    torch.testing.assert_close(attnres.mixing_matrix(model, inputs), matrix)
    if FAMILIES[name][1] == CAUSAL:
        with torch.no_grad():
            start = model(inputs[:, :6], use_cache=True)
            ends = [model(inputs[:, [t]], cache=start.cache, use_cache=True) for t in range(6, 11)]
        steps = torch.cat([start.logits, *(end.logits for end in ends)], 1)
        torch.testing.assert_close(steps, whole.logits, rtol=1e-3, atol=1e-4 * whole.logits.abs().max().item())


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("name", ["falcon", "glm_moe_dsa", "bert", "gemma4_text"])
def test_recomputation_keeps_what_layers_return_beside_their_hidden_states(name, reentrant):
    model = attnres.hf.attach(family(name), "block", block_size=3).train()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    randomise(attnres.hf.connection_of(model))
    inputs = small_inputs(model)

    def gradients():
        model.zero_grad()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # reentrant checkpointing speaks of inputs without a gradient
            model(inputs).logits.square().mean().backward()
        return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}

    expected = gradients()
    model.activation_checkpointing_enable({"use_reentrant": reentrant})
    model.enable_input_require_grads()
    torch.testing.assert_close(gradients(), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["bloom", "bert", "glm_moe_dsa", "opt"])
def test_copies_and_pickles(name):
    """OPT's decoder has a class that transformers does not export."""
    model = attnres.hf.attach(family(name), "full")
    inputs = small_inputs(model)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(twin(inputs).logits, model(inputs).logits)


def test_attention_weights_go_on_being_returned():
    model = family("falcon")
    model.set_attn_implementation("eager")
    inputs = small_inputs(model)
    expected = model(inputs, output_attentions=True).attentions
    found = attnres.hf.attach(model, "full")(inputs, output_attentions=True).attentions
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x):
        return self.weight * x


class Layer(nn.Module):
    flag = True

    def __init__(self):
        super().__init__()
        self.norm, self.norm_2, self.mix, self.mlp = Norm(), Norm(), nn.Linear(4, 4), nn.Linear(4, 4)


class ReturnsInside(Layer):
    def forward(self, x, mask=None):
        y = self.mix(self.norm(x))
        if mask is None:
            return x
        return x + y


class NoSum(Layer):
    def forward(self, x):
        return self.mix(self.norm(x)) * self.mlp(x)


class Shared(Layer):
    def forward(self, x):
        scale = self.norm_2.weight
        x = x + scale * self.mix(self.norm(x))
        return x + scale * self.mlp(self.norm(x))


class FirstReadTwice(Layer):
    def forward(self, x):
        first = x
        x = x + self.mix(self.norm(x))
        x = x + self.mlp(self.norm_2(x))
        return x * first


class Listed(Layer):
    def forward(self, x):
        x = x + self.mix(self.norm(x))
        outputs = [x]
        return outputs


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (ReturnsInside, r"ReturnsInside: `if mask is None: ..` \(line \d+\) returns from inside a sublayer"),
        (NoSum, r"NoSum: `return self.mix.* returns no sum with its hidden states"),
        (Shared, "its sublayers share the variable 'scale'"),
        (FirstReadTwice, r"`x = x \+ self.mix.* is a sum with the hidden states, but more of them is used later"),
        (Listed, "'outputs', which it returns, is not all that is left of its hidden states"),
    ],
)
def test_a_layer_that_cannot_be_cut(layer, message):
    with pytest.raises(UsageError, match=message) as refused:
        read_layer(layer())
    assert "\n" not in str(refused.value)


class Decided(Layer):
    def forward(self, x):
        y = self.mix(self.norm(x))
        if self.flag:
            return x + y + self.mlp(self.norm(x))
        x = x + y
        x = x + self.mlp(self.norm_2(x))
        return x


def test_a_branch_is_decided_by_the_layer_and_not_by_its_class():
    layers = [Decided(), Decided()]
    layers[1].flag = False
    assert [len(read_layer(layer).pieces) for layer in layers] == [1, 2]


@pytest.mark.parametrize("connection", ["x0", "denseformer", "interlayer"])
@pytest.mark.parametrize("name", ["phi", "gpt_neox", "gemma4_text", "gpt_neox, sequential"])
def test_a_rule_of_layers_of_two_sublayers_is_refused_for_others(name, connection):
    """Two layers would count as one, or the halves of one as two, and nothing at the start would show it."""
    model_type, auto_class, options, sites, _ = FAMILIES[name]
    model = small_model(model_type, auto_class, **options)
    if sites == 2 * model.config.num_hidden_layers:
        attnres.hf.attach(model, connection)
        return
    before = type(model)
    with pytest.raises(
        UsageError, match=r"is a rule of transformer layers of two sublayers, .* has [13]; attach anoth"
    ):
        attnres.hf.attach(model, connection)
    assert type(model) is before and type(attnres.hf.attach(model, "block")) is not before
