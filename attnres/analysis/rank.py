"""How much a depth mixing matrix can express: its semiseparable rank (spec.md 2)."""

from __future__ import annotations

import numpy as np

RELATIVE_TOLERANCE = 1e-3
"""Singular values below this share of a block's largest are rounding: M comes from float32 activations."""


def semiseparable_rank(matrix: np.ndarray) -> np.ndarray:
    """The largest numerical rank of the blocks M[l:, :l+1] on and below the diagonal: [..., n, n] -> int [...].

    That is how many numbers per channel a recurrence over depth must carry past site l to produce M: 1 for the plain
    residual and Highway, at most the number of streams for hyper-connections, as much as fits for dense mixing.
    """
    n = matrix.shape[-1]
    ranks = [
        np.linalg.matrix_rank(matrix[..., site:, : site + 1], rtol=RELATIVE_TOLERANCE)  # type: ignore[call-arg]
        for site in range(n)
    ]
    return np.max(ranks, axis=0)
