"""One training run as one typed record. It is stored whole in the run folder; a recipe derives one from another."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from tyro.conf import UseAppendAction

from attnres.data.dataconfig import DataConfig
from attnres.errors import UsageError, check_count, refuse_non_finite
from attnres.model import TransformerConfig


@dataclass(frozen=True)
class OptimizerConfig:
    """Muon for the hidden matrices, AdamW for the rest."""

    hidden: Literal["muon", "adamw"] = "muon"
    """The optimizer of the attention and MLP matrices."""
    lr: float = 2e-2
    """Peak learning rate of the hidden matrices. Muon scales it by 0.2 sqrt(max(fan_in, fan_out))."""
    adamw_lr: float = 3e-3
    """Peak learning rate of the rest: embedding, head, gains and the connection. A pseudo-query's scores move by up to
    sqrt(dim) times as much as its entries, so a rate that suits matrices can be too high for it."""
    connection_rate: float = 1.0
    """The peak learning rate of the connection, as a multiple of adamw_lr."""
    weight_decay: float = 0.1
    """The decay of hidden matrices and the head. Embedding, gains and everything in the connection have none."""
    momentum: float = 0.95
    """Muon's momentum."""
    beta1: float = 0.9
    """AdamW's decay of the first moment."""
    beta2: float = 0.95
    """AdamW's decay of the second moment."""
    clip: float = 1.0
    """The largest norm of the whole gradient; 0 never clips."""
    warmup: float = 0.04
    """Share of the steps over which the learning rate rises linearly from zero."""
    decay: float = 0.25
    """Share of the steps over which it falls linearly to zero at the end (warm-up, stable, decay)."""

    def __post_init__(self) -> None:
        refuse_non_finite(self)
        for name in ("lr", "adamw_lr", "connection_rate"):
            if getattr(self, name) <= 0:
                raise UsageError(f"{name} must be positive, not {getattr(self, name)}")
        if self.weight_decay < 0:
            raise UsageError(f"weight_decay must be at least 0, not {self.weight_decay}")
        for name in ("momentum", "beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise UsageError(f"{name} must be at least 0 and below 1, not {getattr(self, name)}")
        if self.clip < 0:
            raise UsageError(f"clip must be 0 (never) or positive, not {self.clip}")
        if min(self.warmup, self.decay) < 0 or self.warmup + self.decay > 1:
            raise UsageError("warmup and decay are shares of the steps: at least 0 each and at most 1 together")


# Each of the backbone's options has a flag of its own: of one that is given again the last would count alone. Said out
# here, because tyro takes a comment at a field for its help.
@dataclass(frozen=True)
class RunConfig:
    """Everything that decides a run's result, and what it writes on its way."""

    model: Annotated[TransformerConfig, UseAppendAction] = field(default_factory=TransformerConfig)
    data: DataConfig = field(default_factory=DataConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    start_from: str | None = None
    """A run folder with whose last weights this run begins, in place of random ones: the same model, maybe with another
    connection, which then begins at its own start. Options such as block:total=true lose nothing by that."""
    steps: int = 300
    """Optimizer steps."""
    batch_size: int = 8
    """Sequences of `model.context` tokens in a micro-batch."""
    accumulate: int = 1
    """Micro-batches in a step."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to train; auto is the GPU if there is one."""
    seed: int = 0
    """The seed of the initial weights and of the order of the data."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """bfloat16 runs the sublayers under autocast; weights and connections stay in float32."""
    compile: bool = False
    """Run the model through torch.compile; with several processes each sublayer by itself."""
    checkpointing: bool = False
    """Recompute each transformer layer in the backward pass to save memory."""
    evaluate_every: int = 50
    """Steps between evaluations on the fixed validation set; the last step is always evaluated."""
    validation_tokens: int = 65_536
    """Size of the fixed validation set (as many whole sequences as fit, at least one)."""
    save_every: int = 100
    """Steps between checkpoints; the last step is always saved."""
    keep: int = 2
    """How many of the newest checkpoints to keep. The best one stays, too."""
    tensorboard: bool = False
    """Write TensorBoard scalars too (extra: tensorboard)."""

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size", "accumulate", "evaluate_every", "save_every", "keep", "validation_tokens"):
            check_count(name, getattr(self, name))

    @property
    def tokens_per_step(self) -> int:
        return self.batch_size * self.accumulate * self.model.context
