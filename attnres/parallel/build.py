"""A part of a transformer, with the same weights as in the whole, which no process ever holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.modules.module import register_module_parameter_registration_hook

from attnres.connections import make_connection
from attnres.model import Transformer, TransformerConfig
from attnres.model.init import initialise, seeded

T = TypeVar("T", bound=Transformer)


def skeleton(kind: type[T], config: TransformerConfig) -> T:
    """The whole model with its parameters on the meta device, where they take no memory.

    They go there one by one as they are made. Buffers are small, and only the module that makes one knows its value.
    """

    def on_meta(module: nn.Module, name: str, parameter: nn.Parameter) -> nn.Parameter:
        return nn.Parameter(parameter.to("meta"), parameter.requires_grad)

    handle = register_module_parameter_registration_hook(on_meta)  # pyright: ignore[reportArgumentType]
    try:
        return kind(config, seed=None)
    finally:
        handle.remove()


def materialise(whole: Transformer, parts: Sequence[Transformer], seed: int, device: torch.device) -> None:
    """Give parts of a skeleton memory on the device, and the values that `Transformer(config, seed)` has, to the bit.

    parts: what was copied from the skeleton; they may lack parameters or hold them cut over processes. Of the rest one
    parameter at a time is in memory, while the seeded draws go past it; of the connection all, which is small.
    """
    buffers = dict(whole.named_buffers())
    for part in parts:
        part.to_empty(device=device)
        for name, buffer in part.named_buffers():
            buffer.copy_(buffers[name])
    held = {name: parameter for part in parts for name, parameter in part.named_parameters()}
    names = {parameter: name for name, parameter in whole.named_parameters()}

    def give(weight: Tensor, value: Tensor) -> None:
        if (own := held.get(names[weight])) is not None:  # pyright: ignore[reportArgumentType]
            put(own, value)

    config = whole.config
    initialise(whole, config, seed, give)
    with seeded(seed):
        started = make_connection(config.connection, config.dim, config.sublayers)
    for name, value in started.named_parameters():
        if (own := held.get(f"connection.{name}")) is not None:
            put(own, value)


@torch.no_grad()
def put(weight: Tensor, full: Tensor) -> None:
    """Set a weight, of which this process may hold a part, from the whole of it."""
    if isinstance(weight, DTensor):
        # Every process has the whole, so nothing is sent.
        full = distribute_tensor(full.to(weight.device), weight.device_mesh, weight.placements, src_data_rank=None)
    weight.copy_(full)
