"""What the paper measured (2603.15031, Tables 2 and 4; docs/SPEC.md 12), to be held against, never shown as ours."""

from __future__ import annotations

from attnres.analysis.powerlaw import Point

ABLATION = {
    "residual": 1.766,
    "denseformer": 1.767,
    "mhc": 1.747,
    "full": 1.737,
    "full:query=input": 1.731,
    "full:mixing=static": 1.749,
    "full:weighting=sigmoid": 1.741,
    "full:key_norm=false": 1.743,
    "window": 1.764,
    "block": 1.746,
    "block:heads=16": 1.752,
    "block:key_norm=false": 1.750,
    "block:block_size=2": 1.746,
    "block:block_size=8": 1.748,
    "block:block_size=16": 1.753,
}
"""Validation loss of the 16-layer model, by our arm. `block` is S = 4."""

CLAIMS = (
    ("full", "residual", "attention over depth beats the plain residual"),
    ("block", "residual", "Block S = 4 beats the plain residual"),
    ("full", "block", "Full beats Block S = 4"),
    ("full", "denseformer", "weights that depend on the input beat fixed ones"),
    ("full", "mhc", "Full beats mHC"),
    ("mhc", "residual", "mHC beats the plain residual"),
    ("full", "window", "distant sources matter more than many near ones"),
    ("full:query=input", "full", "a query from the input helps"),
    ("full", "full:mixing=static", "keys beat a mixing without them"),
    ("full", "full:weighting=sigmoid", "softmax beats sigmoid"),
    ("full", "full:key_norm=false", "keys want a norm"),
    ("block", "block:heads=16", "one head beats sixteen"),
    ("block", "block:block_size=16", "smaller blocks beat larger ones"),
)
"""(the arm that the paper finds better, the other one, what that says)"""

SCALING = {"residual": (1.891, 0.057), "block": (1.870, 0.058), "full": (1.865, 0.057)}
"""A and a of L = A C^-a, C in PFLOP/s-days."""

SCALING_COMPUTE = 5.6
"""PFLOP/s-days at which the paper reads off its 1.25x: there the curves give its 1.714 and 1.692."""


def scaling_points() -> dict[str, list[Point]]:
    """Points on the published curves: the fit must give their numbers back."""
    computes = [SCALING_COMPUTE / 2**halvings for halvings in range(4, -1, -1)]
    return {arm: [Point(c, scale * c**-exponent) for c in computes] for arm, (scale, exponent) in SCALING.items()}
