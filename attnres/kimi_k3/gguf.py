"""Kimi K3 models as GGUF files, which llama.cpp runs (its architecture `kimi-k3`).

What llama.cpp does not support raises an error here or in `attnres.kimi_k3.from_transformer`.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attnres.data import Tokenizer
from attnres.errors import UsageError, install_command
from attnres.files import replacement
from attnres.kimi_k3.config import KimiK3Config
from attnres.kimi_k3.model import KimiK3ForCausalLM
from attnres.kimi_k3.vocabulary import Vocabulary, vocabulary_of

ARCHITECTURE = "kimi-k3"

TYPES = {"f32": (torch.float32, "F32"), "f16": (torch.float16, "F16"), "bf16": (torch.bfloat16, "BF16")}
"""Types that are written here: torch's, and gguf's name. llama.cpp's own llama-quantize makes others of such a file."""

EXACT_EPS = 1e-6
"""The eps of Kimi K3's latent norms and of KDA's normalised queries and keys, where llama.cpp has the norms' own."""

log = logging.getLogger("attnres")

SIGMOID = 2
"""llama.cpp's number of a router that takes the sigmoid of its scores."""

_RENAMED = {
    "input_layernorm.weight": "attn_norm.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "self_attn.q_a_proj.weight": "attn_q_a.weight",
    "self_attn.q_a_layernorm.weight": "attn_q_a_norm.weight",
    "self_attn.q_b_proj.weight": "attn_q_b.weight",
    "self_attn.kv_a_proj_with_mqa.weight": "attn_kv_a_mqa.weight",
    "self_attn.kv_a_layernorm.weight": "attn_kv_a_norm.weight",
    "self_attn.forget_gate.f_a_proj.weight": "ssm_f_a.weight",
    "self_attn.forget_gate.f_b_proj.weight": "ssm_f_b.weight",
    "self_attn.forget_gate.dt_bias": "ssm_dt.bias",
    "self_attn.b_proj.weight": "ssm_beta.weight",
    "self_attn.o_norm.weight": "ssm_norm.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
    "mlp.gate.weight": "ffn_gate_inp.weight",
    "mlp.gate.e_score_correction_bias": "exp_probs_b.bias",
    "mlp.experts.down_proj": "ffn_down_exps.weight",
    "mlp.routed_expert_down_proj.weight": "ffn_routed_down.weight",
    "mlp.routed_expert_norm.weight": "ffn_routed_norm.weight",
    "mlp.routed_expert_up_proj.weight": "ffn_routed_up.weight",
    "mlp.shared_experts.gate_proj.weight": "ffn_gate_shexp.weight",
    "mlp.shared_experts.up_proj.weight": "ffn_up_shexp.weight",
    "mlp.shared_experts.down_proj.weight": "ffn_down_shexp.weight",
}
"""Tensors of a layer that are the same there under another name."""

_TOP = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}

_IN_FLOAT32 = re.compile(r"ssm_conv1d_.\.weight$|ffn_gate_inp\.weight$")
"""Matrices that llama.cpp's own tools never make narrower."""


def write_gguf(
    model: KimiK3ForCausalLM,
    path: str | Path,
    tokenizer: Tokenizer | None = None,
    kind: str = "f32",
    chat_template: str | None = None,
) -> None:
    """Write a model and its tokenizer to one file.

    Args:
        model: on the CPU.
        path: of the file, which appears whole or not at all.
        tokenizer: bytes or a byte-level BPE; without one llama.cpp takes and gives token ids only.
        kind: of the matrices, one of `TYPES`; small tensors are float32 always.
        chat_template: what turns messages into a prompt, in Jinja.

    Raises:
        UsageError: the gguf library is missing, or the tokenizer or the model is such as llama.cpp does not have.
    """
    gguf = _library()
    _check(model.config)
    dtype, gguf_type = TYPES[kind]
    vocabulary = None if tokenizer is None else vocabulary_of(tokenizer, model.config.vocab_size)
    if (eps := model.config.rms_norm_eps) != EXACT_EPS:
        log.warning(
            "llama.cpp has one eps for all norms: with %g its logits differ a little, with 1e-6 they do not", eps
        )
    with replacement(Path(path)) as partial, closing(gguf.GGUFWriter(partial, ARCHITECTURE)) as writer:
        writer.add_name("attnres")
        writer.add_file_type(int(gguf.LlamaFileType[f"{'ALL' if kind == 'f32' else 'MOSTLY'}_{gguf_type}"]))
        _add_sizes(writer, model.config)
        _add_vocabulary(writer, vocabulary)
        if chat_template is not None:
            writer.add_chat_template(chat_template)
        for tensor_name, tensor in gguf_tensors(model):
            narrow = tensor.ndim > 1 and not _IN_FLOAT32.search(tensor_name)
            _add_tensor(gguf, writer, tensor_name, tensor.to(dtype if narrow else torch.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()


def _check(config: KimiK3Config) -> None:
    """Raise UsageError for what llama.cpp cannot load, or would run otherwise."""
    config.published()  # the form that llama.cpp's architecture was made for
    for wrong, has in (
        (config.linear_num_heads != config.num_attention_heads, "as many linear_num_heads as num_attention_heads"),
        (config.topk_group != config.n_group, "no groups of experts: topk_group is n_group"),
        (len(set(config.layer_types or ())) < 2, "both kinds of attention among layer_types"),
        (config.n_shared_experts < 1 and config.dense_layers < config.num_hidden_layers, "shared experts"),
    ):
        if wrong:
            raise UsageError(f"in llama.cpp every Kimi K3 has {has}; this one does not")


def gguf_tensors(model: KimiK3ForCausalLM) -> Iterator[tuple[str, Tensor]]:
    """Yield the model's tensors as llama.cpp names and shapes them. A site's score is c = g * w."""
    weights = model.state_dict()
    for name, tensor in weights.items():
        if name in _TOP:
            yield _TOP[name], tensor
        elif name.startswith("model.layers."):
            _, _, layer, leaf = name.split(".", 3)
            kind = model.config.layer_types[int(layer)]  # type: ignore[index]
            for suffix, stored in _of_layer(leaf, tensor, model.config, kind):
                yield f"blk.{layer}.{suffix}", stored
    if model.config.attn_res_block_size is None:
        return
    connection: Any = model.model.connection
    *sites, readout = zip(connection.query, connection.gain, strict=True)
    for site, (query, gain) in enumerate(sites):
        layer, half = divmod(site, 2)
        yield f"blk.{layer}.{('attn', 'ffn')[half]}_res_score.weight", (query * gain).detach()
    yield "output_res_score.weight", (readout[0] * readout[1]).detach()


def _of_layer(leaf: str, tensor: Tensor, config: KimiK3Config, kind: str) -> Iterator[tuple[str, Tensor]]:
    """What one tensor of a layer whose attention is of that kind becomes."""
    if leaf in _RENAMED:
        yield _RENAMED[leaf], tensor
    elif leaf == "self_attn.g_proj.weight":
        yield ("ssm_g.weight" if kind == "linear_attention" else "attn_gate.weight"), tensor
    elif leaf == "self_attn.conv1d.weight":  # [channels, 1, taps] -> [1, channels, 1, taps]
        for letter, piece in zip("qkv", tensor.chunk(3), strict=True):
            yield f"ssm_conv1d_{letter}.weight", piece[None]
    elif leaf == "self_attn.forget_gate.A_log":
        yield "ssm_a", -tensor.float().exp()
    elif leaf == "self_attn.kv_b_proj.weight":  # llama.cpp decodes in the latent space, with the two parts apart
        split: list[int] = [config.qk_nope_head_dim, config.v_head_dim]  # type: ignore[list-item]
        keys, values = tensor.unflatten(0, (config.num_attention_heads, -1)).split(split, 1)
        yield "attn_k_b.weight", keys.mT
        yield "attn_v_b.weight", values
    elif leaf == "mlp.experts.gate_up_proj":
        gate, up = tensor.chunk(2, 1)
        yield "ffn_gate_exps.weight", gate
        yield "ffn_up_exps.weight", up
    else:
        raise AssertionError(f"a layer's tensor without a place in the file: {leaf}")


def _add_sizes(writer: Any, config: KimiK3Config) -> None:
    rope, latent = config.qk_rope_head_dim, config.kv_lora_rank
    linear = [kind == "linear_attention" for kind in config.layer_types]  # type: ignore[union-attr]
    whole = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "vocab_size": config.vocab_size,
        "feed_forward_length": config.intermediate_size,
        "leading_dense_block_count": config.dense_layers,
        "attention.head_count": config.num_attention_heads,
        # As one key and value head of the latent's width, and as the heads that it unfolds to.
        "attention.kv_lora_rank": latent,
        "attention.key_length": latent + rope,
        "attention.value_length": latent,
        "attention.key_length_mla": config.qk_nope_head_dim + rope,
        "attention.value_length_mla": config.v_head_dim,
        "rope.dimension_count": rope,
        "ssm.conv_kernel": config.linear_conv_kernel_dim,
        "kda.head_dim": config.linear_head_dim,
        "expert_count": config.num_local_experts,
        "expert_used_count": config.num_experts_per_tok,
        "expert_shared_count": config.n_shared_experts,
        "expert_feed_forward_length": config.moe_intermediate_size,
        "expert_latent_length": config.routed_expert_hidden_size,
        "expert_gating_func": SIGMOID,
        "attn_res.block_size": config.attn_res_block_size or 0,
    }
    if config.q_lora_rank is not None:
        whole["attention.q_lora_rank"] = config.q_lora_rank
    for key, value in whole.items():
        writer.add_uint32(f"{ARCHITECTURE}.{key}", value)
    # A layer without key heads is one of KDA.
    writer.add_array(f"{ARCHITECTURE}.attention.head_count_kv", [0 if own else 1 for own in linear])
    real = {
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "kda.gate_lower_bound": config.linear_gate_lower_bound,
        "expert_weights_scale": config.routed_scaling_factor,
        "activation.situ_beta": config.activation_situ_beta,
        "activation.situ_linear_beta": config.activation_situ_linear_beta,
    }
    for key, value in real.items():
        writer.add_float32(f"{ARCHITECTURE}.{key}", value)
    writer.add_bool(f"{ARCHITECTURE}.expert_weights_norm", config.norm_topk_prob)


def _add_vocabulary(writer: Any, vocabulary: Vocabulary | None) -> None:
    if vocabulary is None:
        writer.add_tokenizer_model("no_vocab")
        return
    writer.add_tokenizer_model("gpt2")  # llama.cpp's name of byte-level BPE
    writer.add_tokenizer_pre(vocabulary.splitting)
    writer.add_token_list(vocabulary.tokens)
    writer.add_token_types(vocabulary.types)
    writer.add_token_merges(vocabulary.merges)
    writer.add_add_bos_token(vocabulary.begin is not None)
    if vocabulary.begin is not None:
        writer.add_bos_token_id(vocabulary.begin)
    writer.add_add_space_prefix(False)
    if vocabulary.end is not None:
        writer.add_eos_token_id(vocabulary.end)


def _add_tensor(gguf: Any, writer: Any, name: str, tensor: Tensor) -> None:
    tensor = tensor.detach().contiguous()
    if tensor.dtype == torch.bfloat16:  # which numpy does not have
        data, raw = tensor.view(torch.uint8).numpy(), gguf.GGMLQuantizationType.BF16
        writer.add_tensor(name, data, raw_dtype=raw)
    else:
        writer.add_tensor(name, tensor.numpy())


def _library() -> Any:
    try:
        import gguf
    except ImportError:
        raise UsageError(f"GGUF files need the gguf library: {install_command('gguf')}") from None
    return gguf
