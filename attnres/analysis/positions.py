"""The positions of each call's tokens in their text, for changes that depend on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import MethodType
from typing import Any

from torch import nn


@contextmanager
def told_positions(holder: nn.Module, name: str) -> Iterator[None]:
    """Set `first_position` of the connection under that name before each forward pass of the module that holds it.

    What tells it asks the module that it is called for, so that in a deep copy it tells the copy's connection.
    """
    undo = _tell_by_start(holder, name) if hasattr(holder, "bound_sublayers") else _tell_by_cache(holder, name)
    try:
        yield
    finally:
        undo()


def _tell_by_start(holder: Any, name: str) -> Callable[[], None]:
    """The lab's model says itself where its tokens stand. Returns what undoes this."""

    def told(holder: Any, time: int, caches: Any = None) -> Any:
        getattr(holder, name).first_position = holder.cached_tokens(caches)
        return type(holder).bound_sublayers(holder, time, caches)

    holder.bound_sublayers = MethodType(told, holder)
    return lambda: delattr(holder, "bound_sublayers")


def _tell_by_cache(holder: nn.Module, name: str) -> Callable[[], None]:
    """The tokens stand behind those of the cache that is given, as in transformers. Returns what undoes this."""

    def tell(holder: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        caches = (value for value in (*args, *kwargs.values()) if hasattr(value, "get_seq_length"))
        getattr(holder, name).first_position = _length(next(caches, None))

    return holder.register_forward_pre_hook(tell, with_kwargs=True).remove


def _length(cache: Any) -> int:
    """How many tokens a cache of transformers holds; 0 without one, and where recurrent states alone do not say so."""
    try:
        return 0 if cache is None else int(cache.get_seq_length())
    except ValueError:
        return 0
