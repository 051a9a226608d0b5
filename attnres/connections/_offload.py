"""Connections whose parameters accelerate keeps elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

from torch import nn

from attnres.connections._connection import Connection

_NOTHING = nullcontext()


def at_hand(connection: Connection) -> AbstractContextManager[None]:
    """Have the connection's parameters where they compute.

    accelerate keeps offloaded weights elsewhere, and fetches a module's when its forward is called. Here nobody calls
    the forward of the connection's parts.
    """
    hooked = _hooked(connection)
    return _fetched(hooked) if hooked else _NOTHING


def _hooked(part: nn.Module) -> list[nn.Module]:
    """Those of a module and its parts that have a hook.

    By dictionaries, because decoding feels it at every layer: `modules` takes four times as long, and to look for an
    attribute that a module lacks takes an exception.
    """
    found = [part] if "_hf_hook" in part.__dict__ else []
    for child in part._modules.values():
        if child is not None:
            found += _hooked(child)
    return found


@contextmanager
def _fetched(hooked: Sequence[nn.Module]) -> Iterator[None]:
    for part in hooked:
        part._hf_hook.pre_forward(part)  # pyright: ignore[reportAttributeAccessIssue, reportCallIssue]
    try:
        yield
    finally:
        for part in hooked:
            part._hf_hook.post_forward(part, None)  # pyright: ignore[reportAttributeAccessIssue, reportCallIssue]
