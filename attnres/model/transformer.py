"""A decoder-only transformer whose residual connection is a replaceable part."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from attnres.connections import Sublayer, Unrolled, Values, make_connection
from attnres.errors import UsageError
from attnres.model.backbones import Context, bound, make_backbone
from attnres.model.init import HEAD_STD, initialise, seeded
from attnres.model.modelconfig import TransformerConfig


class Transformer(nn.Module):
    """Embedding, 2 * layers sublayers joined by a connection, final norm, head.

    `checkpointing = True` recomputes each transformer layer in the backward pass, connection included. With seed None
    the weights are not drawn: for the meta device, or to be loaded.
    """

    cos: Tensor
    sin: Tensor

    def __init__(self, config: TransformerConfig, seed: int | None = 0) -> None:
        super().__init__()
        self.config = config
        self.checkpointing = False
        self.backbone = make_backbone(config)
        with seeded(seed):
            self.connection = make_connection(config.connection, config.dim, config.sublayers)
        if any(self.connection.reads(site) > self.backbone.reads[site % 2] for site in range(config.sublayers)):
            raise UsageError(f"the sublayers of backbone {config.backbone} read one mixture each; leave reads='one'")
        self.embedding = nn.Embedding(config.vocab_size, config.dim)
        self.sublayers = nn.ModuleList(self.backbone.sublayers(self.connection.pre_norm))
        self.norm = nn.RMSNorm(config.dim, config.norm_eps)
        self.head = None if config.tied else nn.Linear(config.dim, config.vocab_size, bias=False)
        cos, sin = self.backbone.angles()
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        self.register_load_state_dict_post_hook(Transformer._refill)
        if seed is not None:
            initialise(self, config, seed)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move it, as `to` and `to_empty` do, of which the latter leaves nothing in a buffer that no state brings."""
        super()._apply(fn, recurse)
        self._refill()
        return self

    def _refill(self, *_: Any) -> None:
        """Make the angles again, where the weights are by now: `load_state_dict(assign=True)` moves those alone."""
        like = next((weight for weight in self.parameters() if not weight.is_meta), self.cos)
        if not like.is_meta:
            cos, sin = self.backbone.angles()
            self.cos, self.sin = cos.to(like.device, self.cos.dtype), sin.to(like.device, self.sin.dtype)

    def new_caches(self, batch: int) -> Any:
        """What decoding `batch` sequences keeps between its steps, empty: for `hidden` and `bound_sublayers`."""
        weight = self.embedding.weight
        return self.backbone.new_caches(batch, weight.dtype, weight.device)

    def bound_sublayers(self, time: int, caches: Any = None) -> list[Sublayer]:
        """The sublayers as functions of h alone, for `time` tokens that stand behind those in `caches`."""
        start = self.cached_tokens(caches)
        stop = start + time
        if stop > self.config.context:
            raise UsageError(f"{stop} tokens do not fit the model's context of {self.config.context}")
        context = Context(self.cos[start:stop], self.sin[start:stop], caches)
        return [bound(sublayer, context) for sublayer in self.sublayers]

    def cached_tokens(self, caches: Any) -> int:
        """How many tokens are in the caches."""
        return 0 if caches is None else self.backbone.cached_tokens(caches)

    def forward(self, tokens: Tensor, caches: Any = None) -> Tensor:
        """tokens [batch, time] -> logits [batch, time, vocab_size]. While decoding, `caches` is from `new_caches`."""
        return self.logits(self.hidden(tokens, caches))

    def hidden(self, tokens: Tensor, caches: Any = None) -> Tensor:
        """tokens [batch, time] -> the readout [batch, time, dim], before the final norm."""
        x = self.embed(tokens)
        # Before `connection.start`: under changes it says where these tokens stand.
        sublayers = self.bound_sublayers(tokens.shape[1], caches)
        return self.connection.readout(self.run(self.connection.start(x), sublayers))

    def embed(self, tokens: Tensor) -> Tensor:
        """The embedding of tokens [batch, time]."""
        if tokens.ndim != 2:
            raise UsageError(f"tokens must be [batch, time], not {list(tokens.shape)}")
        return self.embedding(tokens)

    def unrolled(self, tokens: Tensor) -> Unrolled:
        """Unroll the model over depth for tokens [batch, time]: its connection, the embedding, the sublayers."""
        return self.connection, self.embed(tokens), self.bound_sublayers(tokens.shape[1])

    def logits(self, hidden: Tensor) -> Tensor:
        """The readout [..., dim] -> logits [..., vocab_size]."""
        return self.unembed(self.norm(hidden))

    def unembed(self, normed: Tensor) -> Tensor:
        """What the final norm returned [..., dim] -> logits [..., vocab_size]: linear."""
        if self.head is not None:
            return self.head(normed)
        scale = HEAD_STD / self.config.embedding_std
        return nn.functional.linear(normed * scale, self.embedding.weight)

    def run(self, values: Values, sublayers: list[Sublayer], first: int = 0) -> Values:
        """`connection.run` from site `first` on; with `checkpointing` two sublayers at a time."""
        if not (self.checkpointing and torch.is_grad_enabled()):
            return self.connection.run(values, sublayers, first)
        for start in range(0, len(sublayers), 2):
            layer = sublayers[start : start + 2]
            values = checkpoint(self.connection.run, values, layer, first + start, use_reentrant=False)
        return values
