"""attach: the same model at the start, for every architecture; refusals that change nothing."""

from __future__ import annotations

import copy
import pickle
import threading
import warnings

import pytest
import torch
from torch import nn

import attnres.hf
from attnres import UsageError, connection_names
from attnres.connections._start import difference_at_start
from tests.depth import randomise
from tests.hf.models import CONFIGS, make_model, make_tokens

ARCHITECTURES = sorted(CONFIGS)
EXACT = {
    "residual",
    "x0",
    "denseformer",
    "block",
    "full",
    "delta",
    "interlayer",
    "rms-block",
    "rms-full",
    "rms-residual",
}


def greedy(model, tokens, **options):
    return model.generate(tokens, max_new_tokens=6, do_sample=False, pad_token_id=0, eos_token_id=None, **options)


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize(
    ("connection", "options"), [("full", {}), *(("block", {"block_size": size}) for size in (1, 2, 3, 4, 5, 6, 7, 8))]
)
def test_lossless(name, connection, options):
    """Same logits at every depth and the same greedy tokens, with embeddings so small that the norms' eps is felt."""
    model, tokens = make_model(name), make_tokens()
    with torch.no_grad():
        plain = model(tokens, output_hidden_states=True)
    expected = greedy(model, tokens) if options.get("block_size") in (None, 3) else None
    attnres.hf.attach(model, connection, **options)
    with torch.no_grad():
        attached = model(tokens, output_hidden_states=True)
    scale = plain.logits.abs().max()
    torch.testing.assert_close(attached.logits / scale, plain.logits / scale, rtol=0, atol=1e-5)
    for mine, theirs in zip(attached.hidden_states, plain.hidden_states, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5 * theirs.abs().max().item())
    if expected is not None:
        assert torch.equal(greedy(model, tokens), expected)


def test_the_mean_would_not_be_lossless():
    """SPEC.md 13, trap 12: why total=True."""
    model, tokens = make_model("llama"), make_tokens()
    with torch.no_grad():
        plain = model(tokens).logits
        mean = attnres.hf.attach(model, "full", total=False)(tokens).logits
    assert (plain - mean).abs().max() > 1e-4 * plain.abs().max()


@pytest.mark.parametrize("name", connection_names())
def test_every_connection(name, caplog):
    model, tokens = make_model("llama"), make_tokens()
    with torch.no_grad():
        plain = model(tokens).logits
    if name in ("postnorm", "rezero"):
        with pytest.raises(UsageError, match="defined on sublayers without a norm"):
            attnres.hf.attach(model, name)
        return
    with torch.no_grad():
        # Eight sublayers are all in sight of a window of eight.
        attached = attnres.hf.attach(model, "window:window=4" if name == "window" else name)(tokens).logits
    assert attached.isfinite().all()
    same = torch.allclose(attached, plain, rtol=0, atol=1e-5 * plain.abs().max().item())
    assert (difference_at_start(attnres.hf.connection_of(model)) == "") == (name in EXACT)
    assert same or name not in EXACT
    assert ("does not start as the plain residual" in caplog.text) == (name not in EXACT)


@pytest.mark.parametrize("layers", [4, 1])
@pytest.mark.parametrize("name", ["block", "hc", "interlayer", "x0"])
def test_hidden_states_are_what_each_layer_reads(name, layers):
    """The first layer's too: not every rule reads the embedding as it is."""
    plain, tokens, read = make_model("llama", num_hidden_layers=layers), make_tokens(), []
    model = attnres.hf.attach(plain, name)
    randomise(attnres.hf.connection_of(model))
    for layer in model.model.layers:
        layer.input_layernorm.register_forward_pre_hook(lambda _, args: read.append(args[0]))
    with torch.no_grad():
        states = model(tokens, output_hidden_states=True).hidden_states
    for state, h in zip(states[:-1], read, strict=True):
        torch.testing.assert_close(state, h, rtol=1e-4, atol=1e-4 * h.abs().max().item())


def test_a_model_that_stops_before_its_last_layer_is_refused():
    model, tokens = attnres.hf.attach(make_model("llama"), "block"), make_tokens()
    with pytest.raises(UsageError, match="stopped before its last layer"):
        model.generate(tokens[:1], max_new_tokens=3, do_sample=False, assistant_early_exit=1)
    assert model.generate(tokens[:1], max_new_tokens=3, do_sample=False).shape[1] == tokens.shape[1] + 3
    model.model.layers = model.model.layers[:2]
    with pytest.raises(UsageError, match="stopped before its last layer"):
        model(tokens)


def test_a_start_that_differs_is_said_with_site_and_weight(caplog):
    attnres.hf.attach(make_model("llama"), "highway")
    assert "(site 1 reads source 0 with weight 0.881, not 1)" in caplog.text
    caplog.clear()
    attnres.hf.attach(make_model("llama"), "delta", gate=False)
    assert "(site 1 reads source 1 with weight 2, not 1)" in caplog.text


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_trained_queries_cached_decoding_and_the_depth_matrix(name):
    model, tokens = attnres.hf.attach(make_model(name), "block", block_size=3), make_tokens()
    randomise(attnres.hf.connection_of(model))
    with torch.no_grad():
        whole = model(tokens, use_cache=False).logits
        first = model(tokens[:, :6], use_cache=True)
        rest = [first.logits]
        cache = first.cache
        for position in range(6, tokens.shape[1]):
            step = model(tokens[:, position : position + 1], cache=cache, use_cache=True)
            rest.append(step.logits)
    torch.testing.assert_close(torch.cat(rest, 1), whole, rtol=1e-3, atol=1e-4 * whole.abs().max().item())

    matrix = attnres.hf.mixing_matrix(model, tokens)
    sites = 2 * model.config.num_hidden_layers
    assert matrix.shape == (*tokens.shape, sites + 1, sites + 1)
    assert matrix.triu(1).abs().max() == 0
    torch.testing.assert_close(attnres.mixing_matrix(model, tokens), matrix)
    # h = n sum p v with weights of a softmax; a block's weight stands at each of its members.
    sources = 1 + (torch.arange(sites + 1) + 2) // 3
    distinct = matrix[..., 0] + matrix[..., 1::3].sum(-1)
    torch.testing.assert_close(distinct, sources.expand_as(distinct).float(), rtol=1e-4, atol=1e-4)


def test_depth_change_is_the_same_noise_from_either_side():
    """Of a model whose sources all weigh the same, too, where the other one's do not."""
    model, tokens = attnres.hf.attach(make_model("llama"), "block:block_size=2").eval(), make_tokens()
    moved = copy.deepcopy(model)
    randomise(attnres.hf.connection_of(moved))
    there, back = attnres.hf.depth_change(model, moved, tokens), attnres.hf.depth_change(moved, model, tokens)
    assert there.moved == pytest.approx(back.moved) and there.moved > 0
    assert there.score_noise > 0 and there.margin == 0
    other = attnres.hf.attach(make_model("llama"), "full").eval()
    with pytest.raises(UsageError, match=r"different connections, Block\(.*block_size=2\) and Full\("):
        attnres.hf.depth_change(model, other, tokens)


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
        torch.testing.assert_close(model(tokens).logits, expected, rtol=1e-5, atol=1e-6)


def test_nothing_is_left_on_modules_and_two_threads_may_run_one_model():
    model = attnres.hf.attach(make_model("llama"), "block", block_size=3)
    randomise(attnres.hf.connection_of(model))
    before = {name: set(vars(module)) for name, module in model.named_modules()}
    batches = [make_tokens(2, 11), make_tokens(3, 7)]
    with torch.no_grad():
        expected = [model(tokens).logits for tokens in batches]
    assert before == {name: set(vars(module)) for name, module in model.named_modules()}
    failures = []

    def work(tokens, logits):
        with torch.no_grad():
            failures.extend(1 for _ in range(10) if not torch.equal(model(tokens).logits, logits))

    threads = [threading.Thread(target=work, args=pair) for pair in zip(batches * 2, expected * 2, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures


def test_copies_and_pickles():
    model, tokens = attnres.hf.attach(make_model("llama"), "full"), make_tokens()
    randomise(attnres.hf.connection_of(model))
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(twin(tokens).logits, model(tokens).logits)
        randomised_again = attnres.hf.connection_of(twin)
        nn.init.zeros_(randomised_again.query[3])
        assert not torch.equal(twin(tokens).logits, model(tokens).logits)


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_every_attribute_can_be_read():
    """As inspect.getmembers, a shell's completion and torch.jit do."""
    plain = make_model("llama")
    unreadable = {name for name in dir(plain) if not hasattr(plain, name)}
    model = attnres.hf.attach(plain, "full")
    assert {name for name in dir(model) if not hasattr(model, name)} <= unreadable


def old_style(model):
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model("openai-gpt", n_embd=32, n_layer=2, n_head=4, vocab_size=64)
    return AutoModelForCausalLM.from_config(config)


def shared(model):
    model.model.layers[2] = model.model.layers[0]
    return model


def tied(model):
    model.model.layers[2].mlp.up_proj.weight = model.model.layers[1].mlp.up_proj.weight
    return model


def quantised(model):
    model.config.quantization_config = {"quant_method": "gptq"}
    return model


def encoder_decoder(model):
    from transformers import T5Config, T5ForConditionalGeneration

    return T5ForConditionalGeneration(T5Config(vocab_size=64, d_model=16, d_ff=16, num_layers=1, num_heads=2, d_kv=8))


def adapted(model):
    from peft import LoraConfig, get_peft_model

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # PEFT asks transformers by a name that is going away
        return get_peft_model(model, LoraConfig(target_modules=["q_proj"]))


@pytest.mark.parametrize(
    ("spoil", "arguments", "message"),
    [
        (
            old_style,
            {},
            "layers of class Block: 'outputs', which it returns, is not all that is left of its hidden states",
        ),
        (shared, {}, "layers 0 and 2 share"),
        (tied, {}, "layers 1 and 2 share mlp.up_proj.weight"),
        (quantised, {}, "quantised"),
        (encoder_decoder, {}, "encoder-decoder"),
        (lambda model: nn.Linear(2, 2), {}, "give a model of transformers, not a Linear"),
        (adapted, {}, r"not a PeftModel; attach before wrapping it \(PEFT, DDP\)"),
        (torch.compile, {}, "not a OptimizedModule; attach before wrapping it"),
        (lambda model: attnres.hf.attach(model, "full"), {}, "already has a connection"),
        (lambda model: model, {"block_size": 9}, "block_size 9 is more than the model's 8 sublayers"),
        (lambda model: model, {"block_size": 0}, "block_size must be a whole number"),
        (lambda model: model, {"block_size": "x"}, "block_size must be a whole number"),
        (lambda model: model, {"colour": 1}, "has no option 'colour'"),
        (lambda model: model, {"connection": "bloc"}, "unknown connection 'bloc'"),
    ],
)
def test_refused_and_left_as_it_was(spoil, arguments, message):
    model = spoil(make_model("llama"))
    names, classes = [n for n, _ in model.named_parameters()], [type(m) for m in model.modules()]
    with pytest.raises(UsageError, match=message) as refused:
        attnres.hf.attach(model, **arguments)
    assert "\n" not in str(refused.value)
    assert names == [n for n, _ in model.named_parameters()] and classes == [type(m) for m in model.modules()]


def test_parameter_groups():
    model = attnres.hf.attach(make_model("gpt2"), "block", block_size=2)
    connection = {id(p) for p in attnres.hf.connection_of(model).parameters()}
    model.lm_head.weight.requires_grad_(False)  # tied to the embedding
    groups = {group["name"]: group for group in attnres.hf.param_groups(model, 1e-4, weight_decay=0.1)}
    assert {id(p) for p in groups["connection"]["params"]} == connection
    assert (groups["connection"]["lr"], groups["connection"]["weight_decay"]) == (1e-3, 0.0)
    assert all(p.ndim > 1 for p in groups["decayed"]["params"]) and groups["decayed"]["weight_decay"] == 0.1
    assert all(p.ndim == 1 for p in groups["not decayed"]["params"]) and groups["not decayed"]["weight_decay"] == 0
    listed = [id(p) for group in groups.values() for p in group["params"]]
    assert sorted(listed) == sorted(id(p) for p in model.parameters() if p.requires_grad)
    with pytest.raises(UsageError, match="no connection"):
        attnres.hf.param_groups(make_model("gpt2"), 1e-4)


def test_a_query_s_map_has_a_group_of_its_own():
    model = attnres.hf.attach(make_model("gpt2"), "block", block_size=2, query="input")
    connection = attnres.hf.connection_of(model)
    groups = {group["name"]: group for group in attnres.hf.param_groups(model, 1e-4, query_lr=1.0)}
    assert {id(p) for p in groups["channel maps"]["params"]} == {id(p) for p in connection.query_map}
    assert (groups["channel maps"]["lr"], groups["channel maps"]["weight_decay"]) == (1 / connection.dim, 0.0)
    assert groups["connection"]["lr"] == 1.0 and len(groups["connection"]["params"]) == 2 * len(connection.query_map)


def test_attaching_takes_no_part_in_the_default_device():
    model = make_model("llama")
    torch.set_default_device("meta")
    try:
        attnres.hf.attach(model, "block", block_size=2)
    finally:
        torch.set_default_device(None)
    assert {parameter.device.type for parameter in model.parameters()} == {"cpu"}
    assert model(torch.tensor([[1, 2, 3]])).logits.isfinite().all()
