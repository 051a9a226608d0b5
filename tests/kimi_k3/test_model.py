"""Kimi K3's text model: against its description written out, and in the published checkpoint form."""

from __future__ import annotations

import json

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor

from attnres import Transformer, TransformerConfig
from attnres.errors import UsageError
from tests.hf.models import assert_decodes_as_whole, assert_near
from tests.kimi_k3.small import KimiK3Config, KimiK3ForCausalLM, small_k3, some_tokens

transformers = pytest.importorskip("transformers")

from attnres.kimi_k3 import from_transformer, load, save  # noqa: E402
from attnres.kimi_k3.published import unpack  # noqa: E402


def rms(x: Tensor, gain: Tensor, eps: float = 1e-6) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * gain


def naive_situ(gate: Tensor, up: Tensor) -> Tensor:
    return 4 * torch.tanh(gate / 4) * torch.sigmoid(gate) * (25 * torch.tanh(up / 25))


def naive_kda(w: dict[str, Tensor], x: Tensor, heads: int, head: int) -> Tensor:
    """x [T, D] -> [T, D], token by token: S <- Diag(decay) S + beta k (v - k^T Diag(decay) S)^T, o = S^T q."""

    def convolved(letter: str) -> Tensor:
        taps = w[f"{letter}_conv1d.weight"][:, 0]
        padded = F.pad(x @ w[f"{letter}_proj.weight"].T, (0, 0, 3, 0))
        return F.silu(sum(padded[i : i + len(x)] * taps[:, i] for i in range(4))).view(-1, heads, head)

    q, k, v = (convolved(letter) for letter in "qkv")
    q, k = (y / (y.square().sum(-1, keepdim=True) + 1e-6).sqrt() for y in (q, k))
    raw = (x @ w["f_a_proj.weight"].T @ w["f_b_proj.weight"].T + w["dt_bias"]).view(-1, heads, head)
    decay = (-5 * torch.sigmoid(w["A_log"].exp()[:, None] * raw)).exp()
    beta = torch.sigmoid(x @ w["b_proj.weight"].T)
    state, outs = x.new_zeros(heads, head, head), []
    for t in range(len(x)):
        state = decay[t][..., None] * state
        state = state + torch.einsum(
            "hi,hj->hij", k[t], beta[t][:, None] * (v[t] - torch.einsum("hi,hij->hj", k[t], state))
        )
        outs.append(torch.einsum("hi,hij->hj", q[t], state) * head**-0.5)
    gate = torch.sigmoid(x @ w["g_proj.weight"].T).view(-1, heads, head)
    return (rms(torch.stack(outs), w["o_norm.weight"]) * gate).flatten(1) @ w["o_proj.weight"].T


def naive_mla(w: dict[str, Tensor], x: Tensor, config: KimiK3Config) -> Tensor:
    heads, nope, v_head = config.num_attention_heads, config.qk_nope_head_dim, config.v_head_dim
    q = rms(x @ w["q_a_proj.weight"].T, w["q_a_layernorm.weight"]) @ w["q_b_proj.weight"].T
    latent, shared = (x @ w["kv_a_proj_with_mqa.weight"].T).split([config.kv_lora_rank, config.qk_rope_head_dim], -1)
    kv = (rms(latent, w["kv_a_layernorm.weight"]) @ w["kv_b_proj.weight"].T).view(len(x), heads, nope + v_head)
    k = torch.cat([kv[..., :nope], shared[:, None].expand(-1, heads, -1)], -1)
    scores = torch.einsum("thc,shc->hts", q.view(len(x), heads, -1), k) * k.shape[-1] ** -0.5
    p = scores.masked_fill(torch.ones(len(x), len(x), dtype=torch.bool).triu(1), -torch.inf).softmax(-1)
    y = torch.einsum("hts,shc->thc", p, kv[..., nope:]).flatten(1)
    return (y * torch.sigmoid(x @ w["g_proj.weight"].T)) @ w["o_proj.weight"].T


def naive_moe(w: dict[str, Tensor], x: Tensor, config: KimiK3Config) -> Tensor:
    def mlp(names: tuple[str, str, str], x: Tensor) -> Tensor:
        gate, up, down = (w[name] for name in names)
        return naive_situ(x @ gate.T, x @ up.T) @ down.T

    scores = torch.sigmoid(x @ w["gate.weight"].T)
    chosen = (scores + w["gate.e_score_correction_bias"]).topk(config.num_experts_per_tok).indices
    rows = []
    for token, experts in enumerate(chosen):
        latent = w["routed_expert_down_proj.weight"] @ x[token]
        p = scores[token, experts] / scores[token, experts].sum() * config.routed_scaling_factor
        rows.append(
            sum(
                weight * mlp(tuple(f"experts.{e}.{m}.weight" for m in ("w1", "w3", "w2")), latent)
                for weight, e in zip(p, experts.tolist(), strict=True)
            )
        )
    routed = rms(torch.stack(rows), w["routed_expert_norm.weight"]) @ w["routed_expert_up_proj.weight"].T
    return routed + mlp(tuple(f"shared_experts.{m}_proj.weight" for m in ("gate", "up", "down")), x)


def naive_mix(sources: list[Tensor], gain: Tensor, query: Tensor) -> Tensor:
    stacked = torch.stack(sources)
    return ((rms(stacked, gain) @ query[0]).softmax(0)[..., None] * stacked).sum(0)


def naive_k3(w: dict[str, Tensor], config: KimiK3Config, tokens: Tensor) -> Tensor:
    """The layer loop as the model's authors describe it, from a published checkpoint's tensors, prefix cut off."""

    def of(head: str) -> dict[str, Tensor]:
        return {name.removeprefix(head): tensor for name, tensor in w.items() if name.startswith(head)}

    stored: list[Tensor] = []
    stream = w["model.embed_tokens.weight"][tokens]
    for i in range(config.num_hidden_layers):
        own = of(f"model.layers.{i}.")

        def mix(site: str, stream: Tensor, own: dict[str, Tensor] = own) -> Tensor:
            sources = [*stored, stream]
            return naive_mix(sources, own[f"{site}_res_norm.weight"], own[f"{site}_res_proj.weight"])

        h = mix("self_attention", stream) if stored else stream
        opens = i % config.attn_res_block_size == 0
        if opens:
            stored.append(stream)
        x, weights = rms(h, own["input_layernorm.weight"]), of(f"model.layers.{i}.self_attn.")
        if config.layer_types[i] == "linear_attention":
            y = naive_kda(weights, x, config.linear_num_heads, config.linear_head_dim)
        else:
            y = naive_mla(weights, x, config)
        stream = y if opens else stream + y
        x = rms(mix("mlp", stream), own["post_attention_layernorm.weight"])
        if i == 0:
            gate, up, down = (own[f"mlp.{m}_proj.weight"] for m in ("gate", "up", "down"))
            stream = stream + naive_situ(x @ gate.T, x @ up.T) @ down.T
        else:
            stream = stream + naive_moe(of(f"model.layers.{i}.block_sparse_moe."), x, config)
    read = naive_mix([*stored, stream], w["model.output_attn_res_norm.weight"], w["model.output_attn_res_proj.weight"])
    return rms(read, w["model.norm.weight"]) @ w["lm_head.weight"].T


def published_tensors(folder) -> dict[str, Tensor]:
    return {name: tensor for file in folder.glob("*.safetensors") for name, tensor in load_file(file).items()}


@torch.no_grad()
def test_it_computes_what_its_authors_describe(tmp_path):
    model, tokens = small_k3(), some_tokens(20)
    assert model.config.layer_types == [
        *["linear_attention"] * 3,
        "full_attention",
        "linear_attention",
        "full_attention",
    ]
    save(model, tmp_path / "k3")
    stored = {n.removeprefix("language_model."): t.double() for n, t in published_tensors(tmp_path / "k3").items()}
    given = model(tokens[None]).logits[0]  # in float32, where reads take the norms in
    model.set_experts_implementation("eager")  # the grouped kernel has no float64
    logits, expected = model.double()(tokens[None]).logits[0], naive_k3(stored, model.config, tokens)
    assert logits.std() > 0.3
    # A_log and the like stay in float32, whose rounding these random weights make 5e-4 of.
    assert_near(logits, expected, 1e-3)
    assert_near(given.double(), expected, 3e-3)


@torch.no_grad()
def test_decoding_padding_and_each_kind_of_experts_give_the_same():
    """In float64: in float32 these random weights make of rounding up to 5e-4."""
    model, tokens = small_k3(), some_tokens(2, 24)
    grouped = model(tokens).logits
    model.set_experts_implementation("eager")
    assert_near(model(tokens).logits, grouped, 1e-3)
    whole = model.double()(tokens).logits
    assert_decodes_as_whole(model, tokens[:, :10])
    padded = torch.cat([torch.zeros(2, 5, dtype=torch.long), tokens], 1)
    mask = (torch.arange(29) >= 5).long().expand(2, -1)
    assert_near(model(padded, attention_mask=mask).logits[:, 5:], whole)
    assert (model(padded).logits[:, 5:] - whole).abs().max() > 0.1, "without the mask the padding is read"


def test_checkpointed_gradients_reach_every_parameter():
    tokens = some_tokens(2, 16)
    gradients = []
    for checkpointing in (False, True):
        model = small_k3().train()
        if checkpointing:
            model.activation_checkpointing_enable()
        model(tokens, labels=tokens).loss.backward()
        gradients.append({name: parameter.grad for name, parameter in model.named_parameters()})
    first_site = {"model.connection.query.0", "model.connection.gain.0"}  # one source: its weight is one
    assert {name for name, g in gradients[0].items() if g is None or not g.any()} <= first_site
    for name in first_site:
        del gradients[0][name], gradients[1][name]
    assert_near(gradients[1], gradients[0], 1e-3)


@torch.no_grad()
def test_save_pretrained_and_the_auto_classes(tmp_path):
    model, tokens = small_k3(), some_tokens(1, 12)
    model.to(torch.bfloat16).save_pretrained(tmp_path / "ours", max_shard_size="60KB")
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours")
    assert type(again) is KimiK3ForCausalLM and again.dtype == torch.bfloat16
    kept = {name for name, tensor in again.state_dict().items() if tensor.dtype == torch.float32}
    assert {"model.connection.query.3", "model.layers.0.self_attn.forget_gate.A_log"} <= kept
    assert again(tokens).logits.isfinite().all()
    save(small_k3(), tmp_path / "published")
    published = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "published")
    assert_near(published(tokens).logits, small_k3()(tokens).logits)


def test_the_published_form_takes_a_dtype_and_says_what_else_it_does_not_take(published):
    auto = transformers.AutoModelForCausalLM
    for dtype, loaded in ("bfloat16", torch.bfloat16), ("auto", torch.float32):
        model = auto.from_pretrained(published, dtype=dtype)
        assert model.dtype == loaded
        for name, exact in small_k3().state_dict().items():
            wide = "connection" in name or name.endswith(("A_log", "dt_bias", "e_score_correction_bias"))
            assert torch.equal(model.state_dict()[name], exact if wide else exact.to(loaded)), name
    with pytest.raises(UsageError, match="takes no device_map; write the model"):
        KimiK3ForCausalLM.from_pretrained(published, device_map="auto")


def test_the_published_model_is_built_on_meta():
    with torch.device("meta"):
        model = KimiK3ForCausalLM(KimiK3Config())
    # Published: 2.8T (2.78T in the technical report); 93 layers of which 24 are MLA, the last two both.
    assert model.num_parameters() == 2_779_484_393_568
    config = model.config
    assert [i for i, kind in enumerate(config.layer_types, 1) if kind == "full_attention"] == [*range(4, 93, 4), 93]


def test_the_lab_trains_it_and_it_becomes_a_model_of_transformers():
    options = {
        **{"linear_num_heads": 2, "linear_head_dim": 8, "q_lora_rank": None, "kv_lora_rank": 8, "v_head_dim": 12},
        **{"qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "num_local_experts": 4, "num_experts_per_tok": 2},
        **{"n_shared_experts": 1, "moe_intermediate_size": 16, "routed_expert_hidden_size": 16},
    }
    sizes = {"vocab_size": 50, "dim": 32, "layers": 4, "heads": 2, "hidden": 48, "context": 40}

    def lab(connection: str, **fields) -> Transformer:
        config = TransformerConfig(
            **sizes, backbone="kimi_k3", backbone_options=options, connection=connection, **fields
        )
        return Transformer(config, seed=1).eval()

    tokens = some_tokens(2, 20) % 50
    for connection, tied in (("block:block_size=4", False), ("residual", True)):
        model = lab(connection, tied=tied)
        for parameter in model.connection.parameters():
            torch.nn.init.normal_(parameter)
        made = from_transformer(model, end_token=0)
        assert made.config.eos_token_id == 0
        assert not made.config.tie_word_embeddings, "a tied head goes out as one of its own, 0.02 times the embedding"
        assert_near(made(tokens).logits, model(tokens))
        logits = model(tokens)
        for parameter in made.parameters():
            torch.nn.init.zeros_(parameter)
        assert torch.equal(model(tokens), logits), "no memory is shared"
    starts = dict(lab("residual").named_parameters())
    assert not starts["sublayers.0.block.forget_gate.A_log"].any()
    up, down = (starts[f"sublayers.3.block.routed_expert_{way}_proj.weight"].std() for way in ("up", "down"))
    assert up < 0.6 * down  # only what leaves the sublayer starts smaller
    for refused in ("block:block_size=3", "block:block_size=2,heads=2", "mhc"):
        with pytest.raises(UsageError, match="Kimi K3 has residual, and block"):
            from_transformer(lab(refused))
    with pytest.raises(UsageError, match=r"train with --model.backbone kimi_k3"):
        from_transformer(Transformer(TransformerConfig(**sizes)))


@pytest.fixture
def published(tmp_path):
    save(small_k3(), tmp_path / "k3", max_shard_size="100KB")
    return tmp_path / "k3"


def rewrite(folder, change) -> None:
    """Put all tensors into one file, changed."""
    tensors = published_tensors(folder)
    for file in folder.glob("*.safetensors"):
        file.unlink()
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def test_what_the_published_form_has_no_place_for_is_refused(tmp_path):
    with pytest.raises(UsageError, match="no place for this model's attention_bias"):
        save(small_k3(attention_bias=True), tmp_path / "k3")
    assert not list(tmp_path.iterdir())


def test_the_published_form_is_sharded_and_named_as_it_is(published):
    index = json.loads((published / "model.safetensors.index.json").read_text())
    assert len(set(index["weight_map"].values())) > 5
    names = set(index["weight_map"])
    assert names == set(published_tensors(published))
    for name in (
        "language_model.model.layers.0.mlp.gate_proj.weight",
        "language_model.model.layers.1.self_attn.A_log",
        "language_model.model.layers.1.self_attn.q_conv1d.weight",
        "language_model.model.layers.3.self_attn.kv_a_proj_with_mqa.weight",
        "language_model.model.layers.5.block_sparse_moe.experts.5.w2.weight",
        "language_model.model.layers.5.block_sparse_moe.gate.e_score_correction_bias",
        "language_model.model.layers.2.mlp_res_proj.weight",
        "language_model.model.output_attn_res_norm.weight",
        "language_model.lm_head.weight",
    ):
        assert name in names
    text = json.loads((published / "config.json").read_text())["text_config"]
    assert text["linear_attn_config"]["full_attn_layers"] == [4, 6] and text["first_k_dense_replace"] == 1


@torch.no_grad()
def test_a_release_loads_with_what_else_is_in_it(published):
    """Packed experts, a padded A_log and a vision tower, as in the release."""
    head = "language_model.model.layers.4.block_sparse_moe.experts.2.w1.weight"
    tokens = some_tokens(1, 9)
    packed = torch.randint(0, 256, (32, 16), dtype=torch.uint8)
    scale = torch.randint(122, 127, (32, 1), dtype=torch.uint8)

    def change(tensors: dict[str, Tensor]) -> None:
        del tensors[head]
        tensors |= {f"{head}_packed": packed, f"{head}_scale": scale}
        name = "language_model.model.layers.0.self_attn.A_log"
        tensors[name] = F.pad(tensors[name], (0, 3), value=7.0)
        tensors["vision_tower.patch.weight"] = torch.ones(3)

    rewrite(published, change)
    model, plain = load(published), small_k3()
    expert = model.model.layers[4].mlp.experts.gate_up_proj[2]
    value = (packed[5, 3] >> 4).item()  # column 7
    sizes = (0, 0.5, 1, 1.5, 2, 3, 4, 6)
    assert expert[5, 7] == (-1 if value > 7 else 1) * sizes[value % 8] * 2.0 ** (scale[5, 0].item() - 127)
    plain.model.layers[4].mlp.experts.gate_up_proj[2, :32] = unpack(packed, scale).float()
    assert_near(model(tokens).logits, plain(tokens).logits)


def test_what_is_missing_left_over_or_misshapen_is_named(published):
    def change(tensors: dict[str, Tensor]) -> None:
        del tensors["language_model.model.layers.2.self_attn.b_proj.weight"]
        tensors["language_model.model.layers.9.extra"] = torch.ones(1)
        tensors["language_model.model.norm.weight"] = torch.ones(47)

    rewrite(published, change)
    with pytest.raises(UsageError) as refused:
        load(published)
    for part in (
        "missing: model.layers.2.self_attn.b_proj.weight",
        "surplus: model.layers.9.extra",
        "of another shape: model.norm.weight is [47], not [48]",
    ):
        assert part in str(refused.value)
    content = json.loads((published / "config.json").read_text())
    content["text_config"]["mla_use_nope"] = False
    (published / "config.json").write_text(json.dumps(content))
    with pytest.raises(UsageError, match="says False for mla_use_nope"):
        load(published)
