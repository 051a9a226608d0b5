"""Batches that a thread reads ahead."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Generic, TypeVar

import numpy as np

from attnres.data.sampler import Sampler

T = TypeVar("T")


class Prefetch(Generic[T]):
    """The batches of a sampler in its order, up to `ahead` of them read by a thread before their turn.

    `state` is the place behind the batches that were handed out, not behind those that were read, so a run goes on with
    the next one wherever it was stopped. What reading raises, `next` raises. The thread ends with this object.

    prepare: applied to each batch by the thread.
    """

    def __init__(self, sampler: Sampler, ahead: int, prepare: Callable[[np.ndarray], T]) -> None:
        self._sampler = sampler
        self._ahead = ahead
        self._prepare = prepare
        self._thread = ThreadPoolExecutor(1, "attnres-prefetch")
        self._coming: deque[Future[tuple[T, dict[str, int]]]] = deque()
        self._state = sampler.state()

    def next(self) -> T:
        """Return the next batch, prepared."""
        while len(self._coming) <= self._ahead:
            self._coming.append(self._thread.submit(_read, self._sampler, self._prepare))
        batch, self._state = self._coming.popleft().result()
        return batch

    def state(self) -> dict[str, int]:
        """Return the position, as `Sampler.state` does."""
        return self._state

    def restore(self, state: dict[str, Any]) -> None:
        """Go on where `state` was taken; see `Sampler.restore`."""
        for read in self._coming:  # what was read ahead is of another place, and nothing may move the sampler now
            if not read.cancel():
                read.exception()
        self._coming.clear()
        self._sampler.restore(state)
        self._state = self._sampler.state()


def _read(sampler: Sampler, prepare: Callable[[np.ndarray], T]) -> tuple[T, dict[str, int]]:
    """The next batch and the place behind it. Not a method: the thread must not keep its owner alive."""
    batch = sampler.next()
    return prepare(batch), sampler.state()
