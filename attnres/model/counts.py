"""How many parameters a model has, without building it in memory."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from attnres.model.init import role_of
from attnres.model.modelconfig import TransformerConfig
from attnres.model.transformer import Transformer


@dataclass(frozen=True)
class ParameterCounts:
    """Numbers of parameters by what they are for."""

    total: int
    embedding: int
    """How many parameters the embedding and, if it is untied, the head have."""
    connection: int
    """What the connection adds to the plain residual."""
    active: int
    """That a token meets: all but the experts that it is not sent to."""

    @property
    def active_without_embedding(self) -> int:
        """The activated parameters as the field counts them: embedding and head left out."""
        return self.active - self.embedding


def count_parameters(config: TransformerConfig) -> ParameterCounts:
    """Count the parameters of `Transformer(config)`, on the meta device."""
    with torch.device("meta"):
        model = Transformer(config, seed=None)
    sizes = {"embedding": 0, "head": 0, "connection": 0}
    for name, parameter in model.named_parameters():
        role = role_of(name)
        if role in sizes:
            sizes[role] += parameter.numel()
    total = sum(parameter.numel() for parameter in model.parameters())
    active = sum(active_sizes(model).values())
    return ParameterCounts(total, sizes["embedding"] + sizes["head"], sizes["connection"], active)


def active_sizes(model: Transformer) -> dict[str, int]:
    """Count the entries of each parameter that a token meets: of stacked experts, those that it is sent to."""
    experts = model.backbone.experts_per_token
    return {
        # Experts are stacked along the first dimension.
        name: p.numel() * experts // p.shape[0] if role_of(name) == "experts" else p.numel()
        for name, p in model.named_parameters()
    }
