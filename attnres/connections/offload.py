"""Weights that are stored elsewhere: accelerate offloads them, FSDP2 shards them over processes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn

from attnres.connections.base import Connection

_NOTHING = nullcontext()


def at_hand(connection: Connection, model: nn.Module | None = None) -> AbstractContextManager[None]:
    """Have the connection's parameters where they compute.

    Both fetch a module's when its forward is called, and nobody calls that of the connection's parts. FSDP2 gathers
    them with those of the modules around it, which the model's forward has done; outside of it, give the model.
    """
    hooked = _hooked(connection)
    if model is None:
        return _fetched(hooked, ()) if hooked else _NOTHING
    return _fetched(hooked, [part for part in model.modules() if any(each is connection for each in part.modules())])


def has_hooks(connection: Connection) -> bool:
    """Whether accelerate keeps some of it elsewhere."""
    return bool(_hooked(connection))


def gathered(module: nn.Module) -> AbstractContextManager[None]:
    """Have the parameters whole that FSDP2 gathers when this module is called, outside of such a call."""
    return _fetched((), (module,))


def device_of(module: nn.Module) -> torch.device:
    """Where a module computes. The CPU if it has no parameters, the meta device if they are nowhere yet."""
    weight = next(module.parameters(), None)
    if weight is None or not weight.is_meta:
        return torch.device("cpu") if weight is None else weight.device
    hooks = [getattr(part, "_hf_hook", None) for part in module.modules()]
    device = next((found for hook in hooks if (found := getattr(hook, "execution_device", None)) is not None), "meta")
    return torch.device(device)


def _hooked(part: nn.Module) -> list[nn.Module]:
    """Those of a module and its parts that have a hook.

    By dictionaries, because decoding feels it at every layer: `modules` takes four times as long, and to look for an
    attribute that a module lacks takes an exception.
    """
    found, parts = [], [part]
    for part in parts:
        own = part.__dict__
        if "_hf_hook" in own:
            found.append(part)
        parts += [child for child in own["_modules"].values() if child is not None]
    return found


@contextmanager
def _fetched(hooked: Iterable[Any], cut: Iterable[Any]) -> Iterator[None]:
    with ExitStack() as undo:
        for part in hooked:
            part._hf_hook.pre_forward(part)
            undo.callback(part._hf_hook.post_forward, part, None)
        for part in cut:
            if hasattr(part, "unshard"):  # an FSDPModule
                part.unshard()
                undo.callback(part.reshard)
        yield
