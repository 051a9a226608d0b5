"""How many parameters a model has, without building it in memory."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from attnres.model.backbone import experts_per_token
from attnres.model.config import TransformerConfig
from attnres.model.init import role_of
from attnres.model.transformer import Transformer


@dataclass(frozen=True)
class ParameterCounts:
    """Numbers of parameters by what they are for."""

    total: int
    embedding: int
    """Of the embedding and, if it is untied, the head."""
    connection: int
    """What the connection adds to the plain residual."""
    active: int
    """That a token meets: all but the experts that it is not sent to."""

    @property
    def active_without_embedding(self) -> int:
        """As the field counts activated parameters: embedding and head left out."""
        return self.active - self.embedding


def count_parameters(config: TransformerConfig) -> ParameterCounts:
    """The counts of `Transformer(config)`, from the meta device."""
    with torch.device("meta"):
        model = Transformer(config, seed=None)
    sizes = {"embedding": 0, "head": 0, "connection": 0, "experts": 0}
    total = active = 0
    for name, parameter in model.named_parameters():
        role, size = role_of(name), parameter.numel()
        total += size
        # Experts are stacked along the first dimension.
        active += size * experts_per_token(config) // parameter.shape[0] if role == "experts" else size
        sizes[role] = sizes.get(role, 0) + size
    return ParameterCounts(total, sizes["embedding"] + sizes["head"], sizes["connection"], active)
