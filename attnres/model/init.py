"""The model's initialisation and the roles of its parameters, in one place.

| parameter | start |
|---|---|
| embedding | N(0, embedding_std) |
| q, k, v, gate, up | N(0, 1/sqrt(fan_in)) |
| out of attention and MLP | N(0, 1/sqrt(fan_in * L)): the L outputs then add up to order one |
| untied head | N(0, 0.02); a tied head scales the embedding to the same deviation |
| norm gains | 1 |
| connection | as its own file says |

Embedding, sublayers and head draw from one generator in a fixed order, so models of one seed share these weights
whatever their connection: paired comparisons start from the same point.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn

from attnres.model.config import TransformerConfig

Role = Literal["embedding", "head", "matrix", "gain", "connection"]

HEAD_STD = 0.02


def initialise(
    model: nn.Module,
    config: TransformerConfig,
    seed: int,
    put: Callable[[Tensor, Tensor], object] = Tensor.copy_,
) -> None:
    """Draw the weights of everything but the connection, one after the other. In place.

    put(weight, drawn): what sets a weight, where a process holds only a part of it.
    """
    generator = torch.Generator().manual_seed(seed)

    def normal(weight: Tensor, std: float) -> None:
        # Drawn on the CPU in float32, so that a seed gives one model on every device and in every dtype.
        put(weight, torch.randn(weight.shape, generator=generator) * std)

    with torch.no_grad():
        for name, parameter in model.named_parameters():
            role = role_of(name)
            if role == "embedding":
                normal(parameter, config.embedding_std)
            elif role == "matrix":
                fan_in = parameter.shape[1] * (config.sites if name.endswith("out.weight") else 1)
                normal(parameter, 1 / math.sqrt(fan_in))
            elif role == "head":
                normal(parameter, HEAD_STD)


def role_of(name: str) -> Role:
    """The role of a parameter of `Transformer`, from where it stands and not from its shape."""
    top = name.split(".")[0]
    if top in ("connection", "embedding", "head"):
        return top  # type: ignore[return-value]
    return "gain" if "norm" in name.split(".") else "matrix"


def parameter_roles(model: nn.Module) -> dict[str, Role]:
    """Parameter name -> role. Optimizers choose by role: embeddings, heads and stacked queries are 2-D too."""
    return {name: role_of(name) for name, _ in model.named_parameters()}
