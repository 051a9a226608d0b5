"""The forms in which others ship Block AttnRes, against plain definitions of what their models compute."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

import attnres.hf
from attnres import make_connection
from attnres.errors import UsageError
from attnres.hf.shipped import read_checkpoint, read_connection, write_connection
from tests.connections.test_oracles import naive_attnres
from tests.depth import randomise
from tests.hf.models import assert_near, make_model

LAYERS, DIM = 7, 6


def k3_tensors(layers: int, dim: int, prefix: str = "", dtype=torch.float64, device="cpu") -> dict[str, Tensor]:
    """AttnRes' part of a Kimi K3 checkpoint, names and shapes written out by hand."""
    torch.manual_seed(0)
    tensors = {}
    for i in range(layers):
        for site in ("self_attention_res", "mlp_res"):
            tensors[f"{prefix}model.layers.{i}.{site}_norm.weight"] = 1 + 0.3 * torch.randn(dim, device=device)
            tensors[f"{prefix}model.layers.{i}.{site}_proj.weight"] = torch.randn(1, dim, device=device)
    tensors[f"{prefix}model.output_attn_res_norm.weight"] = 1 + 0.3 * torch.randn(dim, device=device)
    tensors[f"{prefix}model.output_attn_res_proj.weight"] = torch.randn(1, dim, device=device)
    return {name: tensor.to(dtype) for name, tensor in tensors.items()}


def k3_config(layers: int, dim: int, block_size: int) -> dict:
    text = {"num_hidden_layers": layers, "hidden_size": dim, "attn_res_block_size": block_size, "rms_norm_eps": 1e-5}
    return {"model_type": "kimi_k3", "text_config": text}


def make_sublayers(count: int, dim: int, dtype=torch.float64):
    matrices = [torch.randn(dim, dim).to(dtype) / dim**0.5 for _ in range(count)]
    return [lambda h, m=m: torch.tanh(h @ m) for m in matrices]


@pytest.mark.parametrize("form", ["kimi_k3", "fla"])
def test_written_tensors_are_read_back_to_the_bit(form):
    connection = make_connection("block", dim=DIM, sublayers=2 * LAYERS, block_size=4, eps=1e-5)
    for parameter in connection.parameters():
        torch.nn.init.normal_(parameter)
    tensors, entries = write_connection(connection, form)
    again = read_connection(tensors, form, entries)
    assert (again.sublayers, again.dim, again.block_size, again.options.eps) == (2 * LAYERS, DIM, 4, 1e-5)
    for name, parameter in connection.named_parameters():
        assert torch.equal(parameter, again.get_parameter(name)), name


def test_fla_at_every_site():
    """Blocks are counted in sublayers, so that one may end between attention and MLP."""
    config = {"num_hidden_layers": LAYERS, "hidden_size": DIM, "attnres_block_size": 3, "norm_eps": 1e-6}
    torch.manual_seed(1)
    tensors = {}
    for i in range(LAYERS):
        for site in ("attn_res", "mlp_res"):
            tensors[f"model.layers.{i}.{site}_proj.weight"] = torch.randn(1, DIM)
            tensors[f"model.layers.{i}.{site}_norm.weight"] = torch.rand(DIM) + 0.5
    tensors |= {"model.res_proj.weight": torch.randn(1, DIM), "model.res_norm.weight": torch.rand(DIM) + 0.5}
    connection = read_connection(tensors, "fla", config)

    sublayers = make_sublayers(2 * LAYERS, DIM, torch.float32)
    values = connection.start(torch.randn(5, DIM))
    blocks, partial = list(values), None
    for site in range(2 * LAYERS + 1):
        layer, half = divmod(site, 2)
        name = f"model.layers.{layer}.{('attn', 'mlp')[half]}_res" if site < 2 * LAYERS else "model.res"
        query, gain = tensors[f"{name}_proj.weight"], tensors[f"{name}_norm.weight"]
        theirs = naive_attnres()(query, blocks if partial is None else [*blocks, partial], gain, rms_eps=1e-6)
        weights, ours = connection.mix(values, site)
        assert_near(ours, theirs)
        if site < 2 * LAYERS:
            y = sublayers[site](ours)
            values = connection.scatter(values, weights, site, ours, y)
            partial = y if partial is None else partial + y
            if site % 3 == 2:
                blocks, partial = [*blocks, partial], None


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
    connection = read_connection(model.state_dict(prefix="model."), "inkling2", config.to_dict())
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

    tensors, entries = write_connection(connection, "inkling2")
    assert {name.removeprefix("model.") for name in tensors} == named.keys()
    assert all(torch.equal(tensors[f"model.{name}"], parameter) for name, parameter in named.items())
    assert {name: getattr(config, name) for name in entries} == entries


KINDS = ["hybrid", "hybrid_sliding", "hybrid", "hybrid_sliding", "hybrid"]


def test_both_kinds_of_layers_of_inkling2_are_read_and_written():
    """A full-attention layer has a query for each of q, k and v; the readers' test runs such a model."""
    inkling2 = pytest.importorskip("transformers.models.inkling2.modeling_inkling2")
    config = inkling2.Inkling2TextConfig(**INKLING, layer_types=KINDS)
    model = inkling2.Inkling2TextModel(config)
    named = {f"model.{name}": p.data.normal_() for name, p in model.named_parameters() if name.endswith("query")}
    connection = read_connection(named, "inkling2", config.to_dict())
    tensors, entries = write_connection(connection, "inkling2", KINDS)
    assert tensors.keys() == named.keys() and all(torch.equal(tensors[name], named[name]) for name in named)
    assert {name: getattr(config, name) for name in entries} == entries
    connection.query[2].data[1] += 1
    with pytest.raises(UsageError, match="layer 1 has one mixture"):
        write_connection(connection, "inkling2", KINDS)


def test_what_is_attached_with_reads_of_q_k_and_v_goes_through_inkling2s_form():
    options = {"reads": "qkv", "value_norm": True, "scaled_scores": True, "total": False, "block_size": 2}
    models = [attnres.hf.attach(make_model("llama", num_hidden_layers=3), "block", **options) for _ in range(2)]
    connection, other = map(attnres.hf.connection_of, models)
    randomise(connection)
    tensors, entries = write_connection(connection, "inkling2")
    assert entries["layer_types"] == ["hybrid"] * 3
    other.load_state_dict(read_connection(tensors, "inkling2", entries).state_dict())
    tokens = torch.arange(3, 12)[None]
    expected, plain = (model(tokens).logits for model in models)
    torch.testing.assert_close(plain, expected, rtol=1e-4, atol=1e-4)


def test_every_difference_is_named():
    tensors = k3_tensors(LAYERS, DIM, "language_model.")
    del tensors["language_model.model.layers.2.mlp_res_norm.weight"]
    del tensors["language_model.model.output_attn_res_proj.weight"]
    name = "language_model.model.layers.5.self_attention_res_proj.weight"
    tensors[name] = tensors[name][0]
    tensors["language_model.model.layers.7.mlp_res_proj.weight"] = torch.zeros(1, DIM)
    tensors["language_model.model.layers.3.self_attn.q_proj.weight"] = torch.zeros(2)  # not of AttnRes
    with pytest.raises(UsageError) as error:
        read_connection(tensors, "kimi_k3", k3_config(LAYERS, DIM, 2))
    for part in (
        "missing: language_model.model.layers.2.mlp_res_norm.weight, language_model.model.output_attn_res_proj.weight",
        "surplus: language_model.model.layers.7.mlp_res_proj.weight",
        f"of another shape: {name} is [6], not [1, 6]",
    ):
        assert part in str(error.value)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("residual", {}, "stores Block AttnRes; this connection is a Residual"),
        ("block", {"block_size": 3}, "14 sublayers in blocks of 3 do not fit"),
        ("full", {"query": "input"}, "query is 'input'"),
    ],
)
def test_what_a_form_cannot_store_is_refused(name, options, message):
    connection = make_connection(name, dim=DIM, sublayers=2 * LAYERS, **options)
    with pytest.raises(UsageError, match=message):
        write_connection(connection, "kimi_k3")


@pytest.fixture
def checkpoint(tmp_path):
    tensors = k3_tensors(LAYERS, DIM, "language_model.")
    tensors["language_model.model.embed_tokens.weight"] = torch.zeros(4, DIM)
    names = list(tensors)
    for part in (0, 1):
        save_file({name: tensors[name] for name in names[part::2]}, tmp_path / f"model-0000{part}.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(k3_config(LAYERS, DIM, 3)))
    return tmp_path


def test_a_sharded_checkpoint_is_read_from_its_folder(checkpoint):
    connection = read_checkpoint(checkpoint, "kimi_k3")
    expected = k3_tensors(LAYERS, DIM)
    assert connection.block_size == 6
    assert torch.equal(connection.query[3], expected["model.layers.1.mlp_res_proj.weight"][0])
    assert torch.equal(connection.gain[14], expected["model.output_attn_res_norm.weight"])
