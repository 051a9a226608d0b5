"""Small random models of any type that transformers knows, with weights spread as after training."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attnres.model.backbones.borrowed import runnable_kernels

VOCABULARY, LAYERS = 64, 4

LARGEST = 30_000_000
"""Parameters of a model that is still small: some types have sizes under names that are not known here."""

_SIZES = {
    VOCABULARY: r"(unpadded_)?vocab_size(_per_layer_input)?|max_position_embeddings|max_seq(uence)?_len(gth)?"
    r"|n_positions|n_ctx|block_size",
    16: r"(shared_)?(expert|moe)\w*(intermediate|ffn|hidden)\w*(size|dim)|expert_dim|q_lora_rank|image_size",
    48: r"(\w+_)?(intermediate|ffn|inner)\w*|dim_ff|d_ff",
    32: r"hidden_size|d_model|n_embd|word_embed_proj_dim|embedding_size|dim_model|emb_dim|dim",
    8: r"(attention_|global_|local_|qk_nope_|swa_|swa_v_|v_)?head_dim|d_kv|kv_channels|kv_lora_rank|patch_size"
    r"|hidden_size_per_layer_input",
    6: r"(sliding|attention_window)\w*|window_size|attention_chunk_size",
    4: r"((num_)?(hidden|encoder|decoder)_|num_|n_)layers?|n_heads?"
    r"|(num_)?((attention|encoder|decoder)_(attention_)?)?heads?|(num_|n_)(routed_|local_)?experts|(num_moe|moe_num)_experts|qk_rope_head_dim|rotary_dim",
    2: r"num_(key_value|kv|global_key_value)_heads|num_experts_per_tok(en)?|moe_(top_?)?k|top_k(_experts)?",
    1: r"n_group|topk_group",
}
"""What is written for an entry of a configuration whose name is like this."""

_TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "sep_token_id": 2}


def small_model(model_type: str, auto_class: str = "AutoModelForCausalLM", **overrides: Any) -> Any:
    """Make a model of a type, in evaluation mode, on which `small_inputs` have run.

    Raises whatever transformers raises where no such model can be made.
    """
    import transformers

    obstacle: Exception | None = None
    for config in small_configs(model_type, **overrides):
        try:
            torch.manual_seed(0)
            with runnable_kernels():
                cls = getattr(transformers, auto_class)
                with torch.device("meta"):
                    count = sum(parameter.numel() for parameter in cls.from_config(config).parameters())
                if count > LARGEST:
                    raise ValueError(f"its smallest form has {count:,} parameters")
                model = cls.from_config(config).eval()
            with torch.no_grad():
                model(small_inputs(model))
            return model
        except Exception as error:  # whatever a configuration that its authors did not think of leads to
            obstacle = obstacle or error
    raise obstacle or ValueError("it has no configuration")


def small_inputs(model: Any, batch: int = 2, time: int = 11) -> Tensor:
    """Random tokens or, for a vision model, pixels."""
    generator = torch.Generator().manual_seed(5)
    if model.main_input_name == "pixel_values":
        config = model.config
        return torch.randn(batch, config.num_channels, config.image_size, config.image_size, generator=generator)
    return torch.randint(3, VOCABULARY, (batch, time), generator=generator)


@torch.no_grad()
def spread_weights(model: nn.Module) -> None:
    """Give weights the scales of a trained model: heavy-tailed rows and gains, an embedding at which eps is felt."""
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if isinstance(module, nn.Embedding):
                parameter.normal_(0.0, 1e-3)
            elif parameter.ndim == 2:
                parameter.mul_(torch.empty(len(parameter), 1).log_normal_(1.0, 0.7))
            elif name == "weight" and "norm" in type(module).__name__.lower():
                parameter.mul_(torch.empty_like(parameter).log_normal_(0.0, 0.5))


def small_configs(model_type: str, **overrides: Any) -> Iterator[Any]:
    """Configurations of a model type with small sizes under whatever names it has for them.

    The first names the kind of each layer, so that every kind is there; some types want to work them out themselves.
    """
    import transformers
    from transformers import AutoConfig

    if model_type not in transformers.CONFIG_MAPPING:
        pytest.skip(f"transformers {transformers.__version__} has no {model_type}")
    default = AutoConfig.for_model(model_type)
    for options in ({**_small_options(default), **_layer_lists(default)}, _small_options(default)):
        yield type(default)(**{**options, **overrides})


def _small_options(default: Any) -> dict[str, Any]:
    known = default.to_dict()
    options: dict[str, Any] = {}
    for name in {*inspect.signature(type(default).__init__).parameters, *known, *default.attribute_map}:
        if name in default.sub_configs:
            part = getattr(default, name, None)
            options |= {} if part is None else {name: _small_options(part)}
            continue
        value = known.get(default.attribute_map.get(name, name))
        size = next((size for size, pattern in _SIZES.items() if re.fullmatch(pattern, name)), _TOKENS.get(name))
        if size is None or isinstance(value, bool | str | float | Mapping | list | tuple):
            continue
        if value is not None or name.endswith("_token_id") or name == "head_dim":
            options[default.attribute_map.get(name, name)] = size
    if "kv_lora_rank" in options:  # queries, keys and values have heads of their own, and two parts each
        options |= {"num_key_value_heads": 4, "head_dim": options.get("qk_rope_head_dim")}
    return options


def _layer_lists(default: Any) -> dict[str, list[Any]]:
    """Lists with one entry per layer, shortened so that as many kinds of layer as there is room for are left."""
    known = default.to_dict()
    count = known.get("num_hidden_layers")
    lists = {name: value for name, value in known.items() if isinstance(value, list) and len(value) == count}
    kinds = list(dict.fromkeys(zip(*(lists[name] for name in sorted(lists)), strict=True))) if lists else []
    chosen = [kinds[index % len(kinds)] for index in range(LAYERS)] if kinds else []
    return {name: [kind[index] for kind in chosen] for index, name in enumerate(sorted(lists))}
