"""Checks of a backbone's options that need neither torch nor Transformers."""

from __future__ import annotations

from attnres.errors import UsageError
from attnres.model.modelconfig import TransformerConfig

MODEL_TYPES = ("deepseek_v3", "kimi_k3", "kimi_linear", "llama", "mistral", "qwen3", "qwen3_moe")
"""Those of transformers that tests hold against transformers' own forward pass."""


def check_backbone(config: TransformerConfig) -> None:
    """Raise UsageError on what is wrong with the backbone of `config`, as far as it shows here."""
    if config.backbone != "lab":
        if config.backbone not in MODEL_TYPES:
            raise UsageError(f"unknown backbone {config.backbone!r}; choose lab or one of: {', '.join(MODEL_TYPES)}")
        return
    if config.backbone_options:
        raise UsageError("backbone_options need a backbone of transformers; the lab's own has none")
    if config.dim % config.heads or (config.dim // config.heads) % 2:
        raise UsageError(
            f"dim must be an even multiple of heads (RoPE turns pairs): {config.dim} is not, for {config.heads} heads"
        )
