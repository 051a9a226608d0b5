"""Kimi K3's text model for Transformers: `KimiK3ForCausalLM`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import DynamicCache
from transformers import initialization as init
from transformers.masking_utils import create_causal_mask, create_recurrent_attention_mask
from transformers.modeling_outputs import MoeModelOutputWithPast
from transformers.utils.deprecation import deprecate_kwarg
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import OutputRecorder, capture_outputs

from attnres.connections import Connection, make_connection
from attnres.errors import UsageError
from attnres.hf.folder import read_config
from attnres.kimi_k3.config import KimiK3Config, is_published
from attnres.kimi_k3.published import fill
from attnres.kimi_k3.sublayers import KimiK3Attention, KimiK3DecoderLayer, KimiK3Experts, KimiK3ForgetGate
from attnres.model.backbones.borrowed import runnable_kernels

with runnable_kernels():
    from transformers.models.kimi_linear.modeling_kimi_linear import (
        KimiLinearForCausalLM,
        KimiLinearPreTrainedModel,
        KimiLinearRMSNorm,
        KimiLinearTopkRouter,
    )


def connection_for(config: KimiK3Config) -> Connection:
    """Make the connection that the config's `attn_res_block_size`, counted in transformer layers, means."""
    sites = 2 * config.num_hidden_layers
    if config.attn_res_block_size is None:
        return make_connection("residual", config.hidden_size, sites)
    options = {"block_size": 2 * config.attn_res_block_size, "eps": config.rms_norm_eps}
    return make_connection("block", config.hidden_size, sites, **options)


class KimiK3PreTrainedModel(KimiLinearPreTrainedModel):
    config: KimiK3Config
    config_class = KimiK3Config
    _no_split_modules: ClassVar[Any] = ["KimiK3DecoderLayer"]
    _keep_in_fp32_modules_strict: ClassVar[Any] = ["connection", "A_log", "dt_bias", "e_score_correction_bias"]
    _can_record_outputs: ClassVar[Any] = {  # no hidden states: between layers there are several
        "router_logits": OutputRecorder(KimiLinearTopkRouter, index=0),
        "attentions": KimiK3Attention,
    }

    @classmethod
    def _can_set_experts_implementation(cls) -> bool:
        return True  # transformers looks for their decorator in this file, and it is in the backbone's

    @torch.no_grad()
    def _init_weights(self, module: Any) -> None:
        super()._init_weights(module)
        if isinstance(module, KimiK3ForgetGate):
            init.zeros_(module.A_log)  # the inherited start is of a decay without a bound
        elif isinstance(module, KimiK3Experts):
            for stacked in module.parameters():
                init.normal_(stacked, std=self.config.initializer_range)
        elif isinstance(module, Connection):
            for start, parameter in zip(connection_for(self.config).parameters(), module.parameters(), strict=True):
                init.copy_(parameter, start.to(parameter.device))


class KimiK3Model(KimiK3PreTrainedModel):
    """Embedding, decoder layers joined by Block AttnRes, readout, final norm."""

    def __init__(self, config: KimiK3Config) -> None:
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size, config.pad_token_id)
        self.layers = nn.ModuleList(KimiK3DecoderLayer(config, index) for index in range(config.num_hidden_layers))
        self.connection = connection_for(config)
        self.norm = KimiLinearRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.gradient_checkpointing = False
        self.post_init()

    @deprecate_kwarg("past_key_values", "5.40.0", new_name="cache")
    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Any = None,
        position_ids: Tensor | None = None,
        cache: Any = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> MoeModelOutputWithPast:
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give either input_ids or inputs_embeds")
        embedded = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        if use_cache and cache is None:
            cache = DynamicCache(config=self.config)
        masks = attention_mask
        if not isinstance(masks, dict):
            seen = {
                "config": self.config,
                "inputs_embeds": embedded,
                "attention_mask": attention_mask,
                "cache": cache,
                "position_ids": position_ids,
            }
            masks = {
                "full_attention": create_causal_mask(**seen),
                "linear_attention": create_recurrent_attention_mask(**seen),
            }
        values = self.connection.start(embedded)
        for layer, kind in zip(self.layers, self.config.layer_types, strict=True):  # type: ignore[arg-type]
            values = layer(
                *values,
                connection=self.connection,
                attention_mask=masks[kind],
                cache=cache,
                **kwargs,
            )
        hidden = self.norm(self.connection.readout(values))
        return MoeModelOutputWithPast(last_hidden_state=hidden, cache=cache)


class KimiK3ForCausalLM(KimiK3PreTrainedModel, KimiLinearForCausalLM):
    """Kimi K3's text model with its head. Logits are the config's `vocab_size` wide."""

    _pp_plan: ClassVar[Any] = None  # between layers there are several hidden states

    def __init__(self, config: KimiK3Config) -> None:
        KimiLinearPreTrainedModel.__init__(self, config)  # not KimiLinearForCausalLM's, which makes its own model
        self.model = KimiK3Model(config)
        self.vocab_size = config.vocab_size
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *args: Any, **kwargs: Any) -> Any:
        """Load as transformers does; a local folder in the published form as `load` does, with a dtype at most."""
        folder = Path(pretrained_model_name_or_path or "")
        if not ((folder / "config.json").is_file() and is_published(read_config(folder))):
            return super().from_pretrained(pretrained_model_name_or_path, *args, **kwargs)
        ours = {"attn_implementation", "device_map", "output_loading_info", "quantization_config"}
        if given := sorted(name for name in ours & kwargs.keys() if kwargs[name]):
            raise UsageError(
                f"the published form takes no {given[0]}; write the model with save_pretrained and load that"
            )
        return load(folder, kwargs.get("dtype", kwargs.get("torch_dtype")))


def load(folder: str | Path, dtype: torch.dtype | str | None = None) -> KimiK3ForCausalLM:
    """Load a folder in the published form, shards and MXFP4 experts included, or one that `save_pretrained` wrote.

    dtype: of the matrices; None and "auto" keep that of the stored embedding. The connection, KDA's decay and the
        router's bias are float32 in any case.

    Raises UsageError where a tensor is missing, left over or of another shape (each is named), or a file is damaged.
    """
    folder = Path(folder)
    entries = read_config(folder)
    if not is_published(entries):
        return KimiK3ForCausalLM.from_pretrained(folder, dtype=dtype or "auto", local_files_only=True)
    with torch.device("meta"):
        model = KimiK3ForCausalLM(KimiK3Config.from_dict(entries))
    named = None if dtype in (None, "auto") else getattr(torch, dtype) if isinstance(dtype, str) else dtype
    fill(model, folder, named)
    model.tie_weights()
    return model.eval()
