"""The model's initialisation and the roles of its parameters, in one place.

| parameter | start |
|---|---|
| embedding | N(0, embedding_std) |
| q, k, v, gate, up | N(0, 1/sqrt(fan_in)) |
| out of attention and MLP | N(0, 1/sqrt(fan_in * L)): the L outputs then add up to order one |
| untied head | N(0, 0.02); a tied head scales the embedding to the same deviation |
| norm gains | 1 |
| connection | as its own file says |

Sublayers of transformers follow the same rules (o_proj and down_proj are their *out*), and where they have more:

| parameter | start |
|---|---|
| stacked experts | as the matrices that they are a stack of |
| router, short convolution | N(0, 1/sqrt(fan_in)) |
| A_log, dt_bias of KDA | log U(1, 16); softplus^-1 of a step drawn log-uniformly from 1e-3 to 1e-1 |
| A_log of Kimi K3's KDA, whose decay has a bound | 0 |
| biases | 0 |

Embedding, sublayers and head draw from one generator in a fixed order, so models of one seed share these weights
whatever their connection: paired comparisons start from the same point.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn

from attnres.connections import Connection
from attnres.model.modelconfig import TransformerConfig

Role = Literal["embedding", "head", "matrix", "experts", "gain", "other", "connection", "channel map"]

HEAD_STD = 0.02
OUTPUTS = ("out.weight", "o_proj.weight", ".down_proj.weight", "experts.down_proj", "routed_expert_up_proj.weight")


@contextmanager
def seeded(seed: int | None) -> Iterator[None]:
    """What a connection's own file draws for its start in this block comes from the seed alone; None: from wherever."""
    with torch.random.fork_rng(devices=[], enabled=seed is not None):
        if seed is not None:
            torch.default_generator.manual_seed(seed)
        yield


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

    with torch.no_grad(), torch.device("cpu"):  # also inside a block of another device
        for name, parameter in model.named_parameters():
            role = role_of(name)
            if role == "embedding":
                normal(parameter, config.embedding_std)
            elif role in ("matrix", "experts"):
                fan_in = parameter.shape[-1] * (config.sublayers if name.endswith(OUTPUTS) else 1)
                normal(parameter, 1 / math.sqrt(fan_in))
            elif role == "head":
                normal(parameter, HEAD_STD)
            elif role == "gain":
                put(parameter, torch.ones(parameter.shape))
            elif role == "other":
                put(parameter, _draw_other(name, parameter.shape, generator, bounded=config.backbone == "kimi_k3"))


def _draw_other(name: str, shape: torch.Size, generator: torch.Generator, bounded: bool) -> Tensor:
    """What only sublayers of transformers have. KDA's as its authors start it (Kimi Linear, 2510.26692).

    bounded: whether KDA's decay is bound * sigmoid(exp(A_log) ..), which a large A_log would saturate.
    """
    if name.endswith("A_log"):
        if bounded:
            return torch.zeros(shape)
        return torch.empty(shape).uniform_(1, 16, generator=generator).log()
    if name.endswith("dt_bias"):
        step = torch.empty(shape).uniform_(math.log(1e-3), math.log(1e-1), generator=generator).exp()
        return step + torch.log(-torch.expm1(-step))
    if name.endswith("bias"):
        return torch.zeros(shape)
    return torch.randn(shape, generator=generator) / math.sqrt(shape[-1])


def role_of(name: str) -> Role:
    """The role of a parameter of `Transformer`, from its place and not from its shape."""
    top, *path = name.split(".")
    if top in ("connection", "embedding", "head"):
        return top  # type: ignore[return-value]
    if any("norm" in part for part in path) or top == "norm":
        return "gain"
    if "block" not in path:
        return "matrix"
    owner, leaf = path[-2:]  # in a block of transformers
    if owner == "experts":
        return "experts"
    return "matrix" if "_proj" in owner and leaf == "weight" else "other"


def parameter_roles(model: Any) -> dict[str, Role]:
    """Parameter name -> role, of a `Transformer` or a pipeline's part of one.

    Optimizers choose by role: embeddings, heads and stacked queries are 2-D too.
    """
    maps = {
        id(parameter)
        for part in model.modules()
        if isinstance(part, Connection)
        for name, parameter in part.named_parameters()
        if name.split(".")[0] in part.channel_maps
    }
    return {
        name: "channel map" if id(parameter) in maps else role_of(name) for name, parameter in model.named_parameters()
    }
