"""A training step of a model with each connection, over the plain residual's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from attnres.bench.measure import Row, Setting, milliseconds, take_turns
from attnres.model import Transformer, TransformerConfig

CONNECTIONS = {
    "residual": "residual",
    "block": "block:block_size=4",
    "full": "full",
    "rms-block": "rms-block:block_size=4",
    "delta": "delta:block_size=4",
    "reads": "block:block_size=4,reads=qkv-gate-up",
    "interlayer": "interlayer:block_size=8",
}

WHAT = {
    "block": "Block S=4",
    "full": "Full",
    "rms-block": "RMS Block S=4",
    "delta": "Delta Block S=4",
    "reads": "Block S=4, reads qkv-gate-up",
    "interlayer": "Interlayer S=8",
}
"""How the table calls each that is measured over the plain residual."""

TARGETS = {
    "block": ("1.06", "1.03"),
    "full": ("1.20", "1.10"),
    "rms-block": ("1.08", "1.05"),
    "delta": ("1.08", "1.05"),
    "reads": ("1.12", "1.07"),
    "interlayer": ("1.08", "1.05"),
}
"""What a step must, and should, take of the plain residual's."""


@dataclass(frozen=True)
class Sizes:
    """The sizes of the model and its batch."""

    dim: int
    layers: int
    batch: int
    time: int

    def __str__(self) -> str:
        return f"d {self.dim}, {self.layers} layers, {self.batch}x{self.time} tokens"


FULL, QUICK = Sizes(256, 12, 8, 256), Sizes(64, 1, 2, 8)


def measure(setting: Setting) -> list[Row]:
    sizes = QUICK if setting.quick else FULL
    steps = {name: training_step(name, sizes) for name in CONNECTIONS}
    medians = take_turns(steps, setting.rounds, setting.progress, "training step")
    ratio = {name: seconds / medians["residual"] for name, seconds in medians.items()}
    first, *others = (
        Row(f"training step, {what} over residual, {sizes}", setting.where, *TARGETS[name], ratio[name])
        for name, what in WHAT.items()
    )
    first.details |= milliseconds(medians)
    return [first, *others]


def training_step(name: str, sizes: Sizes) -> Callable[[], None]:
    """Loss, gradients and AdamW update on fixed random tokens."""
    model = build_model(name, sizes.dim, sizes.layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    tokens = torch.randint(0, 256, (sizes.batch, sizes.time + 1))

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()).backward()
        optimizer.step()

    return step


def build_model(name: str, dim: int, layers: int) -> Transformer:
    return Transformer(TransformerConfig(dim=dim, layers=layers, heads=dim // 64, connection=CONNECTIONS[name]))
