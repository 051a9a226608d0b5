"""What every backbone provides."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from attnres.connections import Normed, Sublayer
from attnres.model.modelconfig import TransformerConfig
from attnres.ops import plain_norm
from attnres.torch_private import calls_forward_alone


class Context(NamedTuple):
    """What every sublayer of one forward pass shares besides h."""

    cos: Tensor  # [T, E/2], or as the backbone makes it
    sin: Tensor  # as cos
    caches: Any = None  # while decoding: what `Backbone.new_caches` made for these sublayers


def sublayer_name(site: int) -> str:
    """Name the sublayer at a site, counting layers from 0 as the code does: sublayers[7] is layer 3 MLP."""
    return f"layer {site // 2} {('attention', 'MLP')[site % 2]}"


class PreNormed(nn.Module):
    """A sublayer that begins with its `norm`, and can be called with what that returned: `normed=True`."""

    norm: nn.Module


def bound(sublayer: nn.Module, context: Context) -> Sublayer:
    """The sublayer as a function of what it reads alone. Where it has a hook, that sees what it reads."""
    whole = partial(sublayer, context=context)
    if isinstance(sublayer, PreNormed) and (norm := plain_norm(sublayer.norm)) and calls_forward_alone(sublayer):
        return Normed(whole, norm, partial(whole, normed=True))
    return whole


class Backbone(ABC):
    """The sublayers that a connection joins, and what they need around them.

    A sublayer is called as `sublayer(h, context=context)` with h [batch, time, dim] and a `Context`, owns its pre-norm
    and returns its raw output y = f(h). Attention and MLP alternate. Where the connection reads several mixtures
    (`Connection.reads`) it is called with all of them: at most `reads` for attention and for the MLP.
    """

    reads: tuple[int, int] = (1, 1)

    def __init__(self, config: TransformerConfig) -> None:
        self.config = config

    @abstractmethod
    def sublayers(self, pre_norm: bool) -> list[nn.Module]:
        """Build the sublayers of all layers, their weights not drawn; without their norms if not pre_norm."""

    @abstractmethod
    def angles(self) -> tuple[Tensor, Tensor]:
        """Compute cos and sin of the rotary positions, [context, channels]; no channels where there are none."""

    @abstractmethod
    def new_caches(self, batch: int, dtype: torch.dtype, device: torch.device) -> Any:
        """Make what decoding `batch` sequences keeps between its steps, empty."""

    @abstractmethod
    def cached_tokens(self, caches: Any) -> int:
        """Count the tokens that the caches hold."""

    @property
    @abstractmethod
    def experts_per_token(self) -> int:
        """How many routed experts of one mixture a token meets; 0 where there are no mixtures."""

    @abstractmethod
    def mixing_flops(self) -> float:
        """Count the operations per token of one forward pass in which tokens meet, those with weights left out.

        Softmax attention: a token attends to half of its context on average, (context + 1) / 2 keys, at 2 operations
        for each channel of a key and of a value.
        """
