"""Connections whose parameters accelerate keeps elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

from torch import nn

from attnres.connections._connection import Connection


def at_hand(connection: Connection) -> AbstractContextManager[None]:
    """Have the connection's parameters where they compute.

    accelerate keeps offloaded weights elsewhere, and fetches a module's when its forward is called. Here nobody calls
    the forward of the connection's parts.
    """
    # vars, because to look for an attribute that a module lacks takes an exception: decoding feels it at every layer.
    hooked = [part for part in connection.modules() if "_hf_hook" in vars(part)]
    return _fetched(hooked) if hooked else nullcontext()


@contextmanager
def _fetched(hooked: Sequence[nn.Module]) -> Iterator[None]:
    for part in hooked:
        part._hf_hook.pre_forward(part)  # pyright: ignore[reportAttributeAccessIssue, reportCallIssue]
    try:
        yield
    finally:
        for part in hooked:
            part._hf_hook.post_forward(part, None)  # pyright: ignore[reportAttributeAccessIssue, reportCallIssue]
