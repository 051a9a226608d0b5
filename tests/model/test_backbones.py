"""Sublayers from transformers, against transformers' own forward pass with the same weights."""

from __future__ import annotations

import pytest
import torch

from attnres import Transformer, TransformerConfig
from attnres.connections import canonical_connection
from attnres.connections.start import with_exact_start
from attnres.errors import UsageError
from attnres.generate import generate
from attnres.model import parameter_roles
from attnres.model.backbones.borrowed import transformers_config
from attnres.model.modelconfig import MODEL_TYPES

transformers = pytest.importorskip("transformers")

import attnres.kimi_k3  # noqa: E402 it tells the Auto classes of kimi_k3

EXPERTS = {"moe_intermediate_size": 16, "num_experts_per_tok": 2}
LATENT = {"kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 8, "v_head_dim": 12, "q_lora_rank": None}
GROUPS = {"n_group": 1, "topk_group": 1}
KDA = {"linear_num_heads": 2, "linear_head_dim": 8, "layer_types": ("linear_attention", "full_attention")}
OPTIONS: dict[str, dict] = {
    "deepseek_v3": {**EXPERTS, **LATENT, **GROUPS, "n_routed_experts": 4, "first_k_dense_replace": 1},
    "kimi_k3": {
        **{**EXPERTS, **LATENT, **GROUPS, **KDA, "num_local_experts": 4},
        **{"n_shared_experts": 1, "routed_expert_hidden_size": 24},
    },
    "kimi_linear": {**EXPERTS, **LATENT, **GROUPS, **KDA, "num_local_experts": 4},
    "llama": {},
    "mistral": {},
    "qwen3": {"head_dim": 16},
    "qwen3_moe": {**EXPERTS, "num_experts": 4},
}


def config_of(backbone: str, connection: str = "residual", **fields) -> TransformerConfig:
    sizes = {"vocab_size": 50, "dim": 32, "layers": 2, "heads": 4, "kv_heads": 2, "hidden": 48, "context": 40}
    if backbone in ("deepseek_v3", "kimi_k3", "kimi_linear"):  # latent attention has as many key heads as query heads
        sizes["kv_heads"] = None
    options = OPTIONS.get(backbone, {})
    return TransformerConfig(**{**sizes, **fields}, backbone=backbone, backbone_options=options, connection=connection)


def with_options(backbone: str, **options) -> TransformerConfig:
    return TransformerConfig(dim=32, layers=2, heads=2, context=40, backbone=backbone, backbone_options=options)


def transformers_twin(model: Transformer) -> torch.nn.Module:
    """transformers' whole model with the weights of ours."""
    theirs = transformers.AutoModelForCausalLM.from_config(transformers_config(model.config))
    weights = {
        "model.embed_tokens.weight": model.embedding.weight,
        "model.norm.weight": model.norm.weight,
        "lm_head.weight": model.head.weight,
    }
    for name, tensor in model.sublayers.state_dict().items():
        site, part, *rest = name.split(".")
        layer, half = divmod(int(site), 2)
        place = {"block": ("self_attn", "mlp"), "norm": ("input_layernorm", "post_attention_layernorm")}[part][half]
        weights[".".join(["model", "layers", str(layer), place, *rest])] = tensor
    theirs.load_state_dict(weights)  # strict: no weight is left over on either side
    return theirs.eval()


def test_with_a_connection_it_is_the_attached_model():
    """transformers' own llama, attached to, has the logits and the gradients of the model that is trained here."""
    arm = "rms-block"
    sizes = {"backbone": "llama", "layers": 6, "heads": 4, "context": 128, "embedding_std": 0.02}
    plain = Transformer(TransformerConfig(**sizes, connection="residual"), seed=1)
    exact = canonical_connection(arm, **with_exact_start(arm, {}))
    ours = Transformer(TransformerConfig(**sizes, connection=exact), seed=1)
    theirs = attnres.hf.attach(transformers_twin(plain), arm)
    for each in (plain, ours, theirs):  # the embedding's 0.02 makes float32's rounding 50 times larger in gradients
        each.double()
    parameters = dict(attnres.hf.connection_of(theirs).named_parameters())
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in ours.connection.named_parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=draw, dtype=parameter.dtype)
            parameters[name].copy_(parameter)
    tokens = torch.randint(256, (2, 20), generator=draw)
    here, there = ours(tokens), theirs(tokens).logits
    assert (here - plain(tokens)).abs().max() > 1e-3, "the connection is at work"
    torch.testing.assert_close(here, there, rtol=1e-4, atol=1e-5)
    upstream = torch.randn(here.shape, generator=draw, dtype=here.dtype)
    here.backward(upstream)
    there.backward(upstream)
    for name, parameter in ours.connection.named_parameters():
        torch.testing.assert_close(parameter.grad, parameters[name].grad, rtol=1e-3, atol=1e-4)


def test_the_labs_own_model_is_llama():
    sizes = {"vocab_size": 50, "dim": 24, "layers": 3, "heads": 4, "kv_heads": 2, "connection": "residual"}
    ours, theirs = (Transformer(TransformerConfig(**sizes, backbone=name)) for name in ("lab", "llama"))

    def of_llama(name: str) -> str:
        *place, part, weight = name.split(".")
        if not place or part == "norm":
            return name
        part = ("o", "down")[int(place[-1]) % 2] if part == "out" else part
        return ".".join([*place, "block", f"{part}_proj", weight])

    with torch.no_grad():
        for name, parameter in ours.named_parameters():
            if parameter_roles(ours)[name] == "gain":
                parameter.uniform_(0.5, 1.5)
    theirs.load_state_dict({of_llama(name): weight for name, weight in ours.state_dict().items()})
    tokens = torch.randint(50, (2, 20))
    torch.testing.assert_close(ours(tokens), theirs(tokens), rtol=1e-4, atol=1e-5)


def test_every_backbone_is_tested():
    assert sorted(OPTIONS) == sorted(MODEL_TYPES)


@pytest.mark.parametrize("backbone", MODEL_TYPES)
def test_with_the_plain_residual_it_is_transformers_model(backbone):
    model = Transformer(config_of(backbone), seed=3)
    torch.manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():  # gains of one would hide a norm in the wrong place
            if parameter_roles(model)[name] == "gain":
                parameter.uniform_(0.5, 1.5)
    twin = transformers_twin(model)
    tokens = torch.randint(0, 50, (2, 40))
    ours, theirs = model(tokens), twin(tokens).logits
    assert theirs.std() > 0.05
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    upstream = torch.randn_like(ours)
    named = dict(model.named_parameters())
    gradients = dict(zip(named, torch.autograd.grad(ours, [*named.values()], upstream), strict=True))
    theirs.backward(upstream)
    layer = twin.model.layers[1]
    torch.testing.assert_close(gradients["embedding.weight"], twin.model.embed_tokens.weight.grad, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(
        gradients["sublayers.2.norm.weight"], layer.input_layernorm.weight.grad, rtol=1e-3, atol=1e-4
    )
    expected = layer.self_attn.o_proj.weight.grad
    torch.testing.assert_close(gradients["sublayers.2.block.o_proj.weight"], expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("backbone", MODEL_TYPES)
def test_decoding_with_its_cache_equals_the_whole_forward(backbone):
    model = Transformer(config_of(backbone, "block"), seed=1).eval()
    for query in model.connection.query:
        torch.nn.init.normal_(query)
    tokens = torch.randint(0, 50, (1, 15))
    with torch.no_grad():
        whole = model(tokens)
        caches = model.new_caches(1)  # a prompt in two parts, as one that is longer than a chunk is read; then tokens
        parts = [model(part, caches) for part in tokens.split((9, 4, 1, 1), 1)]
        torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=1e-4, atol=1e-4)
        (token,) = generate(model, tokens[0].tolist(), 1, temperature=0)
        assert whole[0, -1, token] > whole[0, -1].max() - 1e-3  # the likeliest, whichever rounding makes that
    assert whole.std() > 0.05


def test_kimi_linear_takes_any_connection():
    model = Transformer(config_of("kimi_linear", "postnorm"), seed=0)
    model.checkpointing = True
    tokens = torch.randint(0, 50, (2, 12))
    model(tokens).logsumexp(-1).mean().backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    used = [name for name, g in gradients.items() if g is not None and not name.startswith("connection")]
    assert all(bool(g.isfinite().all()) for g in gradients.values() if g is not None)
    assert "sublayers.3.block.experts.down_proj" in used and "sublayers.0.block.forget_gate.A_log" in used
    assert ("sublayers.0.norm.weight" in used) == model.connection.pre_norm


def test_models_of_one_seed_share_their_weights_whatever_the_connection():
    one, other = (Transformer(config_of("kimi_linear", name), seed=5) for name in ("residual", "full"))
    for name, parameter in one.named_parameters():
        assert torch.equal(parameter, other.get_parameter(name)), name
        assert bool(parameter.isfinite().all()), name
    assert not torch.equal(one.embedding.weight, Transformer(config_of("kimi_linear"), seed=6).embedding.weight)
    # KDA's time steps start between 1e-3 and 1e-1, its decay rates between 1 and 16.
    gate = one.get_parameter("sublayers.0.block.forget_gate.dt_bias")
    steps = torch.nn.functional.softplus(gate)
    assert 1e-3 <= steps.min() < 0.01 < steps.max() <= 1e-1 + 1e-6
    assert one.get_parameter("sublayers.0.block.forget_gate.A_log").exp().min() >= 1


def test_roles():
    roles = parameter_roles(Transformer(config_of("kimi_linear")))
    for name, role in {
        "sublayers.0.block.conv1d.weight": "other",
        "sublayers.0.block.forget_gate.A_log": "other",
        "sublayers.0.block.forget_gate.f_a_proj.weight": "matrix",
        "sublayers.0.block.o_norm.weight": "gain",
        "sublayers.2.block.kv_a_layernorm.weight": "gain",
        "sublayers.3.block.gate.weight": "other",
        "sublayers.3.block.experts.gate_up_proj": "experts",
        "sublayers.3.block.shared_experts.up_proj.weight": "matrix",
    }.items():
        assert roles[name] == role, name
    model = Transformer(config_of("kimi_linear"))
    assert all(model.get_parameter(name).ndim == 2 for name, role in roles.items() if role == "matrix")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: with_options("llama", experts=2), "backbone llama has no option experts; it takes attention_bias, "),
        (
            lambda: TransformerConfig(backbone="mistral", backbone_options={"sliding_window": 8}),
            "backbone mistral would attend to 8 tokens only",
        ),
    ],
)
def test_what_it_refuses(make, message):
    with pytest.raises(UsageError, match=message) as error:
        Transformer(make())
    assert "\n" not in str(error.value)
