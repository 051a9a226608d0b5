"""Sublayers from transformers: its attention, KDA, MLA and mixtures of experts between the lab's embedding and head.

`TransformerConfig.backbone` names a model type of transformers, or kimi_k3, which is built on one of theirs
(attnres/kimi_k3), whose decoder layers are pre-norm attention and pre-norm MLP. Its layers are built as transformers
builds them and taken apart into the two sublayers that a connection joins; embedding, final norm and head are the
lab's. Needs the extra hf.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from attnres.errors import UsageError, install_command
from attnres.model.backbones._backbone import Backbone, Context
from attnres.model.modelconfig import TransformerConfig

OWN = {"kimi_k3": ("attnres.kimi_k3.sublayers", "KimiK3")}
"""Model types of this library: their module, imported on first use, and what its classes' names begin with."""

NOT_SUBLAYERS = {"attn_res_block_size"}
"""Entries of a model type's configuration that say what the lab's connection says."""

UNUSED = {
    *("initializer_range", "num_mtp_layers", "output_router_logits", "pretraining_tp", "router_aux_loss_coef"),
    "use_cache",
}
"""Entries that say what the lab does itself, or does not have: weights before training, the loss, the cache."""


class Borrowed(Backbone):
    """The decoder layers of one model type of transformers, each taken apart into its two sublayers."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(config)
        self.theirs = transformers_config(config)

    def sublayers(self, pre_norm: bool) -> list[nn.Module]:
        module, prefix = _modeling(self.config.backbone)
        if other := set(self._kinds()) - {"full_attention", "linear_attention"}:
            raise UsageError(f"layer_types are full_attention and linear_attention here, not {min(other)}")
        make_layer = getattr(module, f"{prefix}DecoderLayer")
        kinds = self._kinds()
        sublayers: list[nn.Module] = []
        for number in range(self.config.layers):
            layer = make_layer(self.theirs, number)
            norms = (layer.input_layernorm, layer.post_attention_layernorm) if pre_norm else (nn.Identity(),) * 2
            if kinds[number] == "linear_attention":
                sublayers.append(LinearAttention(norms[0], layer.self_attn))
            else:
                sublayers.append(SoftmaxAttention(norms[0], layer.self_attn, number))
            sublayers.append(BorrowedSublayer(norms[1], layer.mlp))
        return sublayers

    def angles(self) -> tuple[Tensor, Tensor]:
        module, prefix = _modeling(self.config.backbone)
        rotary = getattr(module, f"{prefix}RotaryEmbedding", None)
        if rotary is None:
            return torch.zeros(self.config.context, 0), torch.zeros(self.config.context, 0)
        cos, sin = rotary(self.theirs)(torch.zeros(1), torch.arange(self.config.context)[None])
        return cos[0], sin[0]

    def new_caches(self, batch: int, dtype: torch.dtype, device: torch.device) -> Any:
        """Make transformers' cache: keys and values, or recurrent states, as each layer needs."""
        from transformers import DynamicCache

        return DynamicCache(config=self.theirs)

    def cached_tokens(self, caches: Any) -> int:
        # Recurrent states alone do not tell, and KDA has no positions.
        return caches.get_seq_length() if "full_attention" in self._kinds() else 0

    @property
    def experts_per_token(self) -> int:
        return getattr(self.theirs, "num_experts_per_tok", 0)

    def mixing_flops(self) -> float:
        """Count as `Backbone` says, and KDA (2510.26692) by its recurrence.

        The state of a head, keys by values, decays (1 operation for each entry), is read by the key, gains an outer
        product and is read by the query (2 each).
        """
        theirs = self.theirs
        if hasattr(theirs, "kv_lora_rank"):  # MLA, keys and values unfolded
            channels = theirs.qk_nope_head_dim + theirs.qk_rope_head_dim + theirs.v_head_dim
        else:
            channels = 2 * (getattr(theirs, "head_dim", None) or self.config.head_dim)
        softmax = 2 * theirs.num_attention_heads * channels * (self.config.context + 1) / 2
        kinds = self._kinds()
        linear = kinds.count("linear_attention")
        state = theirs.linear_num_heads * theirs.linear_head_dim**2 if linear else 0
        return (len(kinds) - linear) * softmax + linear * 7 * state

    def _kinds(self) -> list[str]:
        """The kind of each layer's attention, as transformers calls it."""
        return getattr(self.theirs, "layer_types", None) or ["full_attention"] * self.config.layers


class BorrowedSublayer(nn.Module):
    """y = block(norm(h)) for an attention or MLP of transformers and the norm before it."""

    def __init__(self, norm: nn.Module, block: nn.Module) -> None:
        super().__init__()
        self.norm = norm
        self.block = block

    def forward(self, h: Tensor, context: Context) -> Tensor:
        x = self.norm(h)
        y = self.block(x, **self._arguments(x.shape[1], context))
        return _as_a_product(y[0] if isinstance(y, tuple) else y)

    def _arguments(self, time: int, context: Context) -> dict[str, Any]:
        return {}


def _as_a_product(y: Tensor) -> Tensor:
    """In the dtype that autocast gives products, in which most sublayers end: experts are added up in another."""
    kind = y.device.type
    return y.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else y


class LinearAttention(BorrowedSublayer):
    """KDA, which takes neither a mask nor positions."""

    def _arguments(self, time: int, context: Context) -> dict[str, Any]:
        return {"cache": context.caches}


class SoftmaxAttention(BorrowedSublayer):
    def __init__(self, norm: nn.Module, block: nn.Module, layer: int) -> None:
        super().__init__(norm, block)
        self.layer = layer
        self.takes_positions = "position_embeddings" in inspect.signature(block.forward).parameters
        self.cache_name = cache_name(block)

    def _arguments(self, time: int, context: Context) -> dict[str, Any]:
        cache = context.caches
        arguments: dict[str, Any] = {self.cache_name: cache, "attention_mask": None}
        if self.takes_positions:
            arguments["position_embeddings"] = context.cos[None], context.sin[None]
        more = cache is not None and time > 1
        if more and (stored := cache.get_seq_length(self.layer)):  # type: ignore[attr-defined]
            # Without a mask it would be causal from the first stored token on, and not from the first new one.
            mask = torch.ones(time, stored + time, dtype=torch.bool, device=context.cos.device)
            arguments["attention_mask"] = mask.tril(stored)[None, None]
        return arguments


def cache_name(module: nn.Module) -> str:
    """The argument by which a model or an attention of transformers takes its cache; it has changed with versions."""
    taken = inspect.signature(module.forward).parameters
    return next((name for name in ("past_key_values", "cache_params") if name in taken), "cache")


def transformers_config(config: TransformerConfig) -> Any:
    """The backbone's configuration: the sizes of `config` under transformers' names, and `backbone_options`."""
    module, prefix = _modeling(config.backbone)
    from transformers import PreTrainedConfig

    shared = {
        "vocab_size": config.vocab_size,
        "hidden_size": config.dim,
        "intermediate_size": config.n_hidden,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.n_kv_heads,
        "max_position_embeddings": config.context,
        "rms_norm_eps": config.norm_eps,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_base},
        "tie_word_embeddings": config.tied,
        # Of a tokenizer that is not ours.
        **{"pad_token_id": None, "bos_token_id": None, "eos_token_id": None},
    }
    cls: Any = getattr(module, f"{prefix}Config")
    fields = {field.name for field in dataclasses.fields(cls)}
    of_all = {field.name for field in dataclasses.fields(PreTrainedConfig)}
    takes = fields - NOT_SUBLAYERS - UNUSED - shared.keys() - of_all
    unknown = [option for option in config.backbone_options if option not in takes]
    if unknown:
        taken = ", ".join(sorted(takes))
        raise UsageError(f"backbone {config.backbone} has no option {', '.join(unknown)}; it takes {taken}")
    options = {name: value for name, value in shared.items() if name in fields} | config.backbone_options
    options |= dict.fromkeys(NOT_SUBLAYERS & fields)
    theirs = cls(**{name: list(v) if isinstance(v, tuple) else v for name, v in options.items()})
    window = getattr(theirs, "sliding_window", None)
    if window is not None and window < config.context:
        raise UsageError(
            f"backbone {config.backbone} would attend to {window} tokens only; "
            f"give backbone option sliding_window {config.context} or more"
        )
    theirs._attn_implementation = "sdpa"
    theirs._experts_implementation = "grouped_mm" if torch.cuda.is_available() else "eager"
    return theirs


def _modeling(backbone: str) -> tuple[ModuleType, str]:
    """The module of that model type and what its classes' names begin with."""
    try:
        from transformers import AutoConfig
        from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING
    except ImportError:
        raise UsageError(f"backbone {backbone} needs the transformers library: {install_command('hf')}") from None
    if backbone in OWN:
        name, prefix = OWN[backbone]
        return importlib.import_module(name), prefix
    with runnable_kernels():
        cls: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(AutoConfig.for_model(backbone))]  # imports the module
    return sys.modules[cls.__module__], cls.__name__.removesuffix("ForCausalLM")


@contextmanager
def runnable_kernels() -> Iterator[None]:
    """Import modules of transformers in here: where they find fla they take its Triton kernels, and for good, also on
    a machine without a GPU, which cannot run them."""
    if torch.cuda.is_available():
        yield
        return
    before = {"fla": sys.modules["fla"]} if "fla" in sys.modules else {}
    sys.modules["fla"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules["fla"]
        sys.modules.update(before)
