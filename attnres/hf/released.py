"""The depth of any model: Hugging Face models with the connections that they were trained with.

A reader per model type makes the connection of the model's own parameters and names the modules at which a sublayer
begins and ends. Two things are made of that. Unrolled for some tokens, a sublayer is a function of h alone: one pass
records what else its modules are called with (masks, positions). Joined, the model runs as ever, and what its sublayers
read, and what the head reads, is put in the place of its own: whatever replaces the connection has its effect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from attnres.connections import Connection, Unrolled, Values, Weights, make_connection
from attnres.connections.matrix import UNDER_CHANGES
from attnres.errors import UsageError
from attnres.hf.decoder import Anatomy, decoder_of, norm_of, read_anatomy
from attnres.hf.layer import CONNECTION, Call, Stack, Wide, become_layer, become_plain, calls_of, run_whole
from attnres.hf.layer import unroll as unroll_attached
from attnres.hf.readers import RELEASED, Calls, Depth, first_of


@torch.no_grad()
def unroll(model: Any, tokens: Tensor, **inputs: Any) -> Unrolled:
    """Unroll a Hugging Face model over depth for some tokens. The model is not changed.

    >>> connection, embedding, sublayers = unroll(model, tokens)
    >>> final_norm(model)(connection(embedding, sublayers))  # the last hidden state

    Args:
        model: a model whose residual is known: an attached one, one of `RELEASED` by its type, or any whose layers
            `attach` can read, which have the plain residual.
        tokens: int64 [batch, time].
        **inputs: more of the model's own, such as attention_mask.

    Returns:
        The connection, with the model's own parameters; the embedding [batch, time, dim]; and its sublayers.

    Raises:
        UsageError: the model's residual is not known, or the model is inside `intervene`.
    """
    decoder: Any = decoder_of(model)
    calls = Calls()
    depth = _depth(decoder, calls)
    if depth is None:
        with nullcontext() if hasattr(decoder, CONNECTION) else joined(model, joined_connection(model)):
            return unroll_attached(decoder, lambda: run_whole(model, tokens, **inputs))
    if hasattr(decoder, CONNECTION):
        raise UsageError(UNDER_CHANGES)
    calls.update(calls_of({*calls, depth.entrance}, lambda: run_whole(model, tokens, **inputs)))
    return depth.connection, _embedding(depth, calls[depth.entrance]), [site.function for site in depth.sites]


def final_norm(model: Any) -> nn.Module:
    """The norm between the readout and the head; the identity where a model's last read is normalised already."""
    decoder = decoder_of(model)
    depth = _depth(decoder, Calls())
    return norm_of(decoder) if depth is None else depth.norm


def readout_parts(model: Any) -> tuple[nn.Module, Callable[[Tensor], Tensor]]:
    """What a model does with its readout: the final norm, and all that makes logits of what that returns.

    The second runs the model's own forward with the decoder left out, so that scales, biases and caps are its own.
    """
    decoder = decoder_of(model)
    if decoder is model:
        raise UsageError("the model has no head; give the causal language model, not its base model")

    def head(normed: Tensor) -> Tensor:
        flat = normed.reshape(1, -1, normed.shape[-1])
        ids = torch.zeros(flat.shape[:2], dtype=torch.int64, device=flat.device)
        own = vars(decoder).get("forward")  # accelerate's
        decoder.forward = lambda *_, **__: _Normed(flat)
        try:
            logits = model(input_ids=ids, use_cache=False).logits
        finally:
            del decoder.forward
            if own is not None:
                decoder.forward = own
        return logits.reshape(*normed.shape[:-1], -1)

    return final_norm(model), head


def joined_connection(model: Any) -> Connection:
    """The connection of a model that was made without one, for `joined`. Raises UsageError as `unroll` does."""
    depth = _depth(decoder_of(model), Calls())
    if depth is not None:
        return depth.connection
    anatomy = _anatomy(model)
    return make_connection("residual", anatomy.dim, anatomy.sublayers)


@contextmanager
def joined(model: Any, connection: Connection) -> Iterator[None]:
    """Let a model that was made without one run through this connection meanwhile, as `connection` of its decoder."""
    decoder, calls = decoder_of(model), Calls()
    depth = _depth(decoder, calls)
    with ExitStack() as undo:
        if depth is not None:
            for hook in _Course(decoder, depth, calls).hooks():
                undo.callback(hook.remove)
        else:
            anatomy, stack = _anatomy(model), Stack(decoder, [])
            for layer, code, first in zip(anatomy.layers, anatomy.codes, anatomy.first_sites, strict=True):
                become_layer(layer, stack, code, first, connection.sublayers)
                undo.callback(become_plain, layer)
        decoder.register_module(CONNECTION, connection)
        undo.callback(delattr, decoder, CONNECTION)
        yield


class _Course:
    """The hooks by which a forward of a released model goes through its decoder's connection."""

    def __init__(self, decoder: Any, depth: Depth, calls: Calls) -> None:
        self.decoder, self.depth, self.calls = decoder, depth, calls
        self.values: Values = ()
        self.weights: Weights = None
        self.read: tuple[Tensor, ...] = ()
        self.added: list[Tensor] = []

    def hooks(self) -> Iterator[Any]:
        yield self.depth.entrance.register_forward_pre_hook(self._begin, with_kwargs=True)
        for number, site in enumerate(self.depth.sites):
            for read, module in enumerate(site.entries):
                yield module.register_forward_pre_hook(partial(self._enter, number, read), with_kwargs=True)
            for module in site.exits:
                yield module.register_forward_hook(partial(self._leave, number))
        yield self.depth.last.register_forward_hook(self._end)

    def _begin(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.values = self.decoder.connection.start(_embedding(self.depth, (args, kwargs)))

    def _enter(self, number: int, read: int, module: nn.Module, args: Any, kwargs: dict[str, Any]) -> Call:
        site = self.depth.sites[number]
        if read == 0:
            self.weights, h = self.decoder.connection.mix(self.values, number)
            self.read, self.added = h if isinstance(h, tuple) else (h,), []
        if not site.exits:
            if any(hasattr(value, "get_seq_length") for value in (*args, *kwargs.values())):
                raise UsageError(f"under changes {type(module).__name__} keeps no cache; give use_cache=False")
            self.calls[module] = args, kwargs
            self._absorb(number, site.function(*self.read))
        elif args:
            args = (self.read[read], *args[1:])
        else:
            kwargs = {**kwargs, "hidden_states": self.read[read]}
        return args, kwargs

    def _leave(self, number: int, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        self.added.append(first_of(output))
        if len(self.added) == len(self.depth.sites[number].exits):
            self._absorb(number, sum(self.added[1:], self.added[0]))

    def _absorb(self, number: int, y: Tensor) -> None:
        first, *more = self.read
        h = self.read if more else first
        self.values = self.decoder.connection.absorb(self.values, self.weights, number, h, y)

    def _end(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> Tensor:
        values, self.values = self.values, ()
        return self.depth.norm.forward(self.decoder.connection.readout(values))


def _depth(decoder: Any, calls: Calls) -> Depth | None:
    """How a released decoder carries information, None for others; `calls` gets what its sublayers have to know."""
    attached = isinstance(getattr(decoder, CONNECTION, None), Wide)
    reader = None if attached else RELEASED.get(decoder.config.model_type)
    return reader and reader(decoder, calls)


def _anatomy(model: Any) -> Anatomy:
    try:
        return read_anatomy(model)
    except UsageError as error:
        known = ", ".join(sorted(RELEASED))
        raise UsageError(f"{error}; the residuals that are known without reading layers are those of {known}") from None


def _embedding(depth: Depth, call: Call) -> Tensor:
    args, kwargs = call
    stream = args[0] if args else kwargs["hidden_states"]
    return stream[..., 0, :] if stream.ndim > 3 else stream[..., : depth.connection.dim]


class _Normed:
    """What a decoder returned, as all kinds of models look at it: the last hidden state, and of all else nothing."""

    def __init__(self, hidden: Tensor) -> None:
        self.last_hidden_state = hidden

    def __getitem__(self, key: int | str) -> Tensor | None:
        return self.last_hidden_state if key in (0, "last_hidden_state") else None

    def keys(self) -> tuple[str, ...]:  # models of text and pictures pass all of it on by name
        return ("last_hidden_state",)

    def __getattr__(self, name: str) -> None:
        return None
