"""Everything that shapes a model, as one typed record."""

from __future__ import annotations

from dataclasses import dataclass, field

from attnres.connections import Option, canonical_connection
from attnres.errors import UsageError, check_count, refuse_non_finite

MODEL_TYPES = ("deepseek_v3", "kimi_k3", "kimi_linear", "llama", "mistral", "qwen3", "qwen3_moe")
"""Backbones of transformers: those that tests hold against transformers' own forward pass."""


@dataclass(frozen=True)
class TransformerConfig:
    """Sizes and options of the lab's transformer."""

    vocab_size: int = 256
    """Number of token ids; training raises it to the tokenizer's."""
    dim: int = 64
    """Width of the residual stream."""
    layers: int = 16
    """Transformer layers; each is two sublayers (attention, then MLP)."""
    heads: int = 2
    """Query heads."""
    kv_heads: int | None = None
    """Key and value heads (grouped-query attention); as many as query heads when not given."""
    hidden: int | None = None
    """Width of the SwiGLU MLP; 8/3 of dim rounded up to a multiple of 16 when not given."""
    context: int = 256
    """The longest sequence."""
    connection: str = "block"
    """What carries information through depth, NAME or NAME:OPTION=VALUE,OPTION=VALUE; kept in its canonical form."""
    backbone: str = "lab"
    """Where the sublayers come from: the lab's own, or a model type of transformers such as kimi_linear (extra: hf)."""
    backbone_options: dict[str, Option | tuple[str, ...]] = field(default_factory=dict)
    """Sizes that only the backbone of transformers has, under its own names, such as kv_lora_rank; as a flag one at a
    time: `--model.backbone-options num_experts 8 --model.backbone-options num_experts_per_tok 2`."""
    tied: bool = False
    """Use the embedding as the output head too."""
    embedding_std: float = 1.0
    """Standard deviation of the embedding at the start. It moves the baseline by itself: report it."""
    norm_eps: float = 1e-6
    """eps of the sublayers' and the final RMSNorm."""
    rope_base: float = 10_000.0
    """Base wavelength of the rotary position embedding."""

    def __post_init__(self) -> None:
        refuse_non_finite(self)
        for name in ("vocab_size", "dim", "layers", "heads", "context"):
            check_count(name, getattr(self, name))
        object.__setattr__(self, "connection", canonical_connection(self.connection, self.sublayers))
        for name in ("kv_heads", "hidden"):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name))
        self._check_backbone()
        if self.heads % self.n_kv_heads:
            raise UsageError(f"kv_heads must divide heads: {self.n_kv_heads} does not divide {self.heads}")
        for name in ("embedding_std", "norm_eps", "rope_base"):
            if getattr(self, name) <= 0:
                raise UsageError(f"{name} must be positive, not {getattr(self, name)}")

    def _check_backbone(self) -> None:
        if self.backbone not in ("lab", *MODEL_TYPES):
            raise UsageError(f"unknown backbone {self.backbone!r}; choose lab or one of: {', '.join(MODEL_TYPES)}")
        if self.backbone == "lab" and self.backbone_options:
            raise UsageError("backbone_options need a backbone of transformers; the lab's own has none")
        if self.backbone == "lab" and (self.dim % self.heads or self.head_dim % 2):
            raise UsageError(
                f"dim must be an even multiple of heads (RoPE turns pairs): {self.dim} is not, for {self.heads} heads"
            )

    @property
    def sublayers(self) -> int:
        """The number of sublayers L."""
        return 2 * self.layers

    @property
    def head_dim(self) -> int:
        return self.dim // self.heads

    @property
    def n_kv_heads(self) -> int:
        return self.heads if self.kv_heads is None else self.kv_heads

    @property
    def n_hidden(self) -> int:
        return -(-8 * self.dim // 48) * 16 if self.hidden is None else self.hidden
