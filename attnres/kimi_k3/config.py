"""The configuration of Kimi K3's text model, and how the published checkpoint writes it down."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import transformers
from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig

from attnres.errors import UsageError

try:
    from transformers.models.kimi_linear.configuration_kimi_linear import KimiLinearConfig
except ModuleNotFoundError:
    raise UsageError(
        f"Kimi K3 is built on transformers' kimi_linear: it needs transformers 5.24, not {transformers.__version__}"
    ) from None

FIXED = {
    "hidden_act": "situ",
    "latent_moe_use_norm": True,
    "mla_use_nope": True,
    "mla_use_output_gate": True,
    "moe_layer_freq": 1,
    "moe_router_activation_func": "sigmoid",
    "num_nextn_predict_layers": 0,
}
"""Entries of the published config.json that have one value here."""

FIXED_LINEAR = {"use_full_rank_gate": True}
"""The same inside its `linear_attn_config`."""

SIZES = (
    *("vocab_size", "hidden_size", "intermediate_size", "moe_intermediate_size", "num_hidden_layers"),
    *("num_attention_heads", "num_key_value_heads", "num_shared_experts", "num_experts", "num_experts_per_token"),
    *("routed_expert_hidden_size", "routed_scaling_factor", "moe_renormalize", "num_expert_group", "topk_group"),
    *("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"),
    *("activation_situ_beta", "activation_situ_linear_beta", "attn_res_block_size", "rms_norm_eps"),
    *("initializer_range", "model_max_length", "bos_token_id", "eos_token_id", "pad_token_id", "tie_word_embeddings"),
)
"""Entries that config.json and `KimiK3Config` have by the same name."""


UNPUBLISHED = {"attention_dropout", "output_router_logits", "pretraining_tp", "use_cache"}
"""Entries that say how a model is trained or called, and not what it is."""


@strict
class KimiK3Config(KimiLinearConfig):
    """The sizes of a Kimi K3 text model; the defaults are those of the published one."""

    model_type = "kimi_k3"

    hidden_size: int = 7168
    intermediate_size: int = 33792
    moe_intermediate_size: int = 3072
    num_hidden_layers: int = 93
    num_attention_heads: int = 96
    num_key_value_heads: int | None = None
    n_shared_experts: int = 2
    routed_scaling_factor: float = 1.0
    q_lora_rank: int | None = 1536
    num_experts_per_tok: int | None = 16
    num_local_experts: int = 896
    linear_num_heads: int = 96
    hidden_act: str = "situ"

    linear_gate_lower_bound: float = -5.0
    """What the logarithm of KDA's decay is never below."""
    activation_situ_beta: float = 4.0
    activation_situ_linear_beta: float = 25.0
    routed_expert_hidden_size: int = 3584
    """The width of the latent space that the routed experts work in."""
    attn_res_block_size: int | None = 12
    """Transformer layers in a block of Block AttnRes; None joins the sublayers by the plain residual."""

    def __post_init__(self, **kwargs: Any) -> None:
        linear = kwargs.get("linear_attn_config", {})
        self.linear_gate_lower_bound = linear.get("gate_lower_bound", self.linear_gate_lower_bound)
        if self.layer_types is None and "full_attn_layers" not in linear:
            last = self.num_hidden_layers - 1
            kinds = ("linear_attention", "full_attention")
            self.layer_types = [kinds[i % 4 == 3 or i == last] for i in range(self.num_hidden_layers)]
        super().__post_init__(**kwargs)
        if self.hidden_act != FIXED["hidden_act"]:
            raise UsageError(f"hidden_act of Kimi K3 is {FIXED['hidden_act']!r}, not {self.hidden_act!r}")

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """Make the configuration of config.json's content, ours or the published form's."""
        return super().from_dict(_flat(config_dict), **kwargs)

    @property
    def dense_layers(self) -> int:
        """How many layers have one MLP in place of experts; they come first."""
        kinds = self.mlp_layer_types or []
        return kinds.index("sparse") if "sparse" in kinds else self.num_hidden_layers  # type: ignore[return-value]

    def published(self) -> dict[str, Any]:
        """Return the content of a config.json in the published form, which counts layers from 1.

        Raises UsageError where that form has no place for what this model has, such as a bias in its attention.
        """
        content = self._published()
        back = type(self).from_dict(content)
        own = {field.name for field in fields(self)} - {field.name for field in fields(PreTrainedConfig)} - UNPUBLISHED
        if lost := sorted(name for name in own if getattr(back, name) != getattr(self, name)):
            raise UsageError(f"Kimi K3's published form has no place for this model's {', '.join(lost)}")
        return content

    def _published(self) -> dict[str, Any]:
        numbers = {
            kind: [i for i, own in enumerate(self.layer_types, 1) if own == kind]  # type: ignore[arg-type]
            for kind in ("linear_attention", "full_attention")
        }
        linear = {
            "kda_layers": numbers["linear_attention"],
            "full_attn_layers": numbers["full_attention"],
            "num_heads": self.linear_num_heads,
            "head_dim": self.linear_head_dim,
            "short_conv_kernel_size": self.linear_conv_kernel_dim,
            "gate_lower_bound": self.linear_gate_lower_bound,
            **FIXED_LINEAR,
        }
        text = {
            "model_type": "kimi_linear",
            "architectures": ["KimiLinearForCausalLM"],
            **FIXED,
            **{name: getattr(self, name) for name in SIZES},
            "first_k_dense_replace": self.dense_layers,
            "linear_attn_config": linear,
        }
        tokens = {name: text[name] for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
        return {
            "model_type": self.model_type,
            "architectures": ["KimiK3ForConditionalGeneration"],
            **tokens,
            "text_config": text,
        }


def is_published(content: dict[str, Any]) -> bool:
    """Whether that is the content of a config.json in the published form."""
    return "text_config" in content


def _flat(content: dict[str, Any]) -> dict[str, Any]:
    """Content of config.json with what the published form nests, and only names, brought to the top."""
    if not is_published(content):
        return content
    text = content["text_config"]
    linear = text.get("linear_attn_config", {})
    for entries, fixed in ((text, FIXED), (linear, FIXED_LINEAR)):
        for name, only in fixed.items():
            if entries.get(name, only) != only:
                raise UsageError(
                    f"config.json says {entries[name]!r} for {name}; of Kimi K3 only {only!r} is known here"
                )
    kept = {name: value for name, value in text.items() if name in SIZES}
    kept |= {name: text[name] for name in ("first_k_dense_replace", "linear_attn_config") if name in text}
    return {**kept, "model_type": KimiK3Config.model_type, "architectures": ["KimiK3ForCausalLM"]}
