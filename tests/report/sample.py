"""Profiles and curves made of numbers alone: no model is needed to test a figure."""

from __future__ import annotations

import numpy as np

from attnres.analysis import DepthProfile, sublayer_names
from attnres.report.write import Curves


def profile(sublayers: int = 6) -> DepthProfile:
    random = np.random.default_rng(0)
    n, positions = sublayers + 1, (2, 5)
    matrices = np.tril(random.uniform(0.01, 1, (1 + len(positions), n, n)))
    share = matrices[0] / matrices[0].sum(-1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        entropy = -np.nansum(share * np.log(share), -1)
    return DepthProfile(
        names=sublayer_names(sublayers),
        positions=positions,
        mean_matrix=matrices[0],
        mean_share=share,
        token_matrices=matrices[1:],
        output_rms=random.uniform(0.5, 50, n),
        input_rms=random.uniform(0.5, 5, n),
        gradient_rms=random.uniform(1e-4, 1e-2, n),
        entropy=entropy,
    )


def curves(seeds: int = 3, steps: int = 40, offset: float = 0.0) -> Curves:
    random = np.random.default_rng(7)
    return {
        seed: [(step, float(5 / np.sqrt(step) + offset + 0.1 * random.random())) for step in range(1, steps + 1)]
        for seed in range(seeds)
    }
