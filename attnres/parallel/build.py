"""A part of a transformer, with the weights that it has in the whole, where no process ever holds the whole."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.modules.module import register_module_parameter_registration_hook

from attnres.connections import Connection, make_connection
from attnres.model import Transformer, TransformerConfig
from attnres.model.init import initialise, seeded

T = TypeVar("T", bound=Transformer)


def skeleton(kind: type[T], config: TransformerConfig) -> T:
    """The whole model with its parameters on the meta device, where they take no memory.

    They go there one by one as they are made. Buffers are small, and only the module that makes one knows its value.
    """
    with _at_registration(_on_meta):
        return kind(config, seed=None)


def materialise(whole: Transformer, parts: Sequence[Transformer], seed: int, device: torch.device) -> None:
    """Give parts of a skeleton memory on the device, and the values that `Transformer(config, seed)` has, to the bit.

    parts: what was copied from the skeleton; they may lack parameters or hold them cut over processes. Of the rest one
    parameter at a time is in memory, while the seeded draws go past it.
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

    initialise(whole, whole.config, seed, give)
    for name, value in _start_of_connection(whole.config, held, seed).items():
        put(held[name], value)


@torch.no_grad()
def put(weight: Tensor, full: Tensor) -> None:
    """Set a weight, of which this process may hold a part, from the whole of it."""
    if isinstance(weight, DTensor):
        # Every process has the whole, so nothing is sent.
        full = distribute_tensor(full.to(weight.device), weight.device_mesh, weight.placements, src_data_rank=None)
    weight.copy_(full)


def _start_of_connection(config: TransformerConfig, wanted: Container[str], seed: int) -> Mapping[str, nn.Parameter]:
    """The wanted parameters of the connection as its own file starts them; of the others never two at a time."""

    def make() -> Connection:
        return make_connection(config.connection, config.dim, config.sublayers)

    registered: list[nn.Parameter] = []
    with _at_registration(lambda module, name, parameter: registered.append(parameter)), torch.device("meta"):
        names = {parameter: f"connection.{name}" for name, parameter in make().named_parameters()}
    order = iter(registered)
    keep = _at_registration(lambda *which: None if names[next(order)] in wanted else _on_meta(*which))
    with keep, seeded(seed):
        started = make()
    return {f"connection.{name}": p for name, p in started.named_parameters() if not p.is_meta}


def _on_meta(module: nn.Module, name: str, parameter: nn.Parameter) -> nn.Parameter:
    return nn.Parameter(parameter.to("meta"), parameter.requires_grad)


@contextmanager
def _at_registration(hook: Callable[[nn.Module, str, nn.Parameter], nn.Parameter | None]) -> Iterator[None]:
    """Show every parameter to `hook` as a module registers it; what the hook returns, if not None, takes its place."""
    handle = register_module_parameter_registration_hook(hook)  # pyright: ignore[reportArgumentType]
    try:
        yield
    finally:
        handle.remove()
