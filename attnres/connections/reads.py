"""Sites that read several mixtures of the same sources: one each for queries, keys and values, or for an MLP's gate.

Source: multiway dynamic dense connections, MUDDFormer (2502.12170).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import torch
from torch import Tensor

from attnres.connections.base import Mixture, one_of, reads_in

Reads = Literal["one", "qk-v", "qkv", "qkv-gate-up"]

_COUNTS: dict[str, tuple[int, int]] = {"one": (1, 1), "qk-v": (2, 1), "qkv": (3, 1), "qkv-gate-up": (3, 2)}


def reads_of_sites(reads: Reads, sublayers: int) -> list[int]:
    """Count the mixtures that are made at sites 0 .. L: for attention, at even sites, and an MLP; the readout has one.

    Raises:
        UsageError: an unknown word.
    """
    one_of("reads", reads, tuple(_COUNTS))
    return [*(_COUNTS[reads][site % 2] for site in range(sublayers)), 1]


def per_read(value: float, reads: int, *shape: int) -> Tensor:
    """Make a site's parameter, filled with `value`: of that shape, or [reads, ...] of it where there are several."""
    return torch.full(shape if reads == 1 else (reads, *shape), value)


def each_read(parameter: Tensor, reads: int) -> Sequence[Tensor]:
    """Split what `per_read` made into one tensor per read."""
    return (parameter,) if reads == 1 else parameter.unbind()


def mixture(reads: Iterable[Tensor]) -> Mixture:
    """Join what a site reads: a tensor for one, a tuple for several."""
    first, *others = reads
    return (first, *others) if others else first


def mean_read(h: Mixture) -> Tensor:
    """Average what a site reads, where one vector is needed; a single read is returned unchanged."""
    reads = reads_in(h)
    return reads[0] if len(reads) == 1 else torch.stack(reads).mean(0)
