"""The positions of each call's tokens in their text, for changes that depend on them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import MethodType
from typing import Any
from weakref import WeakKeyDictionary

from torch import nn


@contextmanager
def told_positions(holder: nn.Module, name: str) -> Iterator[None]:
    """Set `first_position` of the connection under that name before each forward pass of the module that holds it.

    None, and `untold` where that is known to be wrong, if nobody says it. What tells it asks the module that it is
    called for, so that in a deep copy it tells the copy's connection.
    """
    with ExitStack() as undo:
        if hasattr(holder, "bound_sublayers"):
            undo.callback(_tell_by_start(holder, name))
        else:
            for remove in _tell_by_cache(holder, name):
                undo.callback(remove)
        yield


def _tell_by_start(holder: Any, name: str) -> Any:
    """The lab's model says itself where its tokens stand. Returns what undoes this."""

    def told(holder: Any, time: int, caches: Any = None, start: int = 0) -> Any:
        getattr(holder, name).first_position = start
        return type(holder).bound_sublayers(holder, time, caches, start)

    holder.bound_sublayers = MethodType(told, holder)
    return lambda: delattr(holder, "bound_sublayers")


def _tell_by_cache(holder: nn.Module, name: str) -> tuple[Any, Any]:
    """The tokens stand behind those of the cache that is given, as in transformers. Returns what undoes this."""
    read: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
    """How many tokens went into each cache that does not say so itself."""

    def tell(holder: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        connection, cache = getattr(holder, name), _cache_in((*args, *kwargs.values()))
        connection.first_position = None if cache is None else _length(cache, read)
        connection.untold |= cache is not None and connection.first_position is None

    def count(holder: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        given = _cache_in((*args, *kwargs.values()))
        kept = _cache_in(out.values() if isinstance(out, dict) else out if isinstance(out, tuple) else ())
        first = 0 if given is None else getattr(holder, name).first_position
        if first is not None and kept is not None and _length(kept, {}) is None:
            tokens = (*args, kwargs.get("input_ids"), kwargs.get("inputs_embeds"))
            read[kept] = first + next(each for each in tokens if each is not None).shape[1]

    before = holder.register_forward_pre_hook(tell, with_kwargs=True)
    after = holder.register_forward_hook(count, with_kwargs=True)
    return before.remove, after.remove


def _cache_in(values: Any) -> Any:
    """What of these says how many tokens it holds, if anything."""
    return next((value for value in values if hasattr(value, "get_seq_length")), None)


def _length(cache: Any, read: Mapping[Any, int]) -> int | None:
    """How many tokens a cache of transformers holds. None where nobody knows: recurrent states alone do not say so."""
    try:
        return int(cache.get_seq_length())
    except ValueError:
        return read.get(cache) if cache.has_previous_state() else 0
