"""Where the parts of a transformers model are that a connection is attached to, and whether one fits them."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from attnres.connections import Connection, connection_class, make_connection, parse_connection
from attnres.errors import UsageError
from attnres.hf.code import LayerCode, read_layer
from attnres.hf.loop import read_loop, runs_layers


@dataclass(frozen=True)
class Anatomy:
    """Where the parts of a decoder are that a connection is attached to."""

    decoder: nn.Module
    layers: list[nn.Module]
    codes: list[LayerCode]
    dim: int

    @property
    def first_sites(self) -> list[int]:
        """The site of each layer's first sublayer."""
        return [0, *itertools.accumulate(len(code.pieces) for code in self.codes[:-1])]

    @property
    def sites(self) -> int:
        """How many sublayers the layers have."""
        return sum(len(code.pieces) for code in self.codes)


def no_model(given: Any) -> UsageError:
    """Say what to give in place of what is no model of transformers."""
    return UsageError(
        f"give a model of transformers, not a {type(given).__name__}; attach before wrapping it (PEFT, DDP)"
    )


def decoder_of(model: Any) -> nn.Module:
    """The module of a transformers model that holds the layers."""
    if not callable(getattr(model, "get_decoder", None)) or not hasattr(model, "config"):
        raise no_model(model)
    decoder = model.get_decoder()
    if decoder is model and not runs_layers(type(model)):  # llama4's text model says so of its head
        parts = (part for part in model.children() if hasattr(part, "config"))
        decoder = next((part for part in parts if runs_layers(type(part))), model)
    return decoder if hasattr(decoder, "config") else model.base_model  # some call their head a decoder


def read_anatomy(model: Any) -> Anatomy:
    """Find the decoder and its layers. Raises UsageError where their code cannot be read."""
    decoder = decoder_of(model)
    layers = read_loop(decoder).layers
    codes = [read_layer(layer) for layer in layers]
    return Anatomy(decoder, layers, codes, model.config.get_text_config().hidden_size)


def norm_of(decoder: nn.Module) -> nn.Module:
    """The final norm of a decoder, plain or attached. Raises UsageError if it has none, as post-norm models."""
    # A decoder that is made with its connection, as Kimi K3's, has no such loop.
    norm = read_loop(decoder).norm if runs_layers(type(decoder)) else getattr(decoder, "norm", None)
    if norm is None:
        raise UsageError(f"no norm follows the layers of {type(decoder).__name__}")
    return norm


def fitting_connection(connection: str, dim: int, sites: int) -> Connection:
    """Make the connection in float32, on the CPU.

    Raises UsageError where it does not fit a transformers decoder.
    """
    if not connection_class(connection).pre_norm:
        raise UsageError(f"{connection} is defined on sublayers without a norm of their own; this model's have one")
    with torch.device("cpu"), _default_dtype(torch.float32):
        made = make_connection(connection, dim, sites)
    block_size = parse_connection(connection)[1].get("block_size")
    if isinstance(block_size, int) and block_size > sites:
        raise UsageError(f"block_size {block_size} is more than the model's {sites} sublayers; give at most {sites}")
    return made


@contextlib.contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """transformers makes a model of bfloat16 under that default, which would round the connection's start."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
