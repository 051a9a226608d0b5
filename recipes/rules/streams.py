"""Candidates for a rule of our own, second part: streams of normalised outputs that attend to nothing.

    attnres ablate residual recipes/rules/streams.py:Stream:keen=4 --data.dataset stdlib

Found in the search of docs/VERDICT.md, whose runs name candidates.py: that file stays as it was.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from attnres.connections._connection import Connection, Values, Weights, inverse_rms, stream_dtype


class Stream(Connection):
    """Before each transformer layer x <- l0 x + l1 v_0;  then h = x and x <- x + a N(y), N(y) = y / rms(y).

    l0 = 1, l1 = 0 and a = 1 at the start. feed=False: without l0 and l1. size: a is one number per sublayer, or one
    per channel, or stays 1. keen: every number is its start and so many times what is learned, so that an optimizer
    whose steps are of one size moves it so many times further.
    """

    def __init__(
        self,
        dim: int,
        sites: int,
        feed: bool = True,
        size: Literal["one", "channel", "none"] = "one",
        keen: float = 1.0,
        eps: float = 1e-6,
    ) -> None:
        super().__init__(dim, sites)
        self.feed, self.keen, self.eps = feed, keen, eps
        count = {"one": 1, "channel": dim, "none": 0}[size]
        self.lam = nn.ParameterList(torch.zeros(2) for _ in range(0, sites if feed else 0, 2))
        self.size = nn.ParameterList(torch.zeros(count) for _ in range(sites if count else 0))

    def start(self, x: Tensor) -> Values:
        return (x, x) if self.feed else (x,)

    def weigh(self, values: Values, site: int) -> Weights:
        if not self.feed or site % 2 or site == self.sites:
            return ()
        keep, refresh = (self.keen * self.lam[site // 2]).unbind()
        return 1 + keep, refresh

    def gather(self, values: Values, weights: Weights, site: int) -> Tensor:
        if not weights:
            return values[0]
        keep, refresh = weights
        return (keep * values[0] + refresh * values[1]).to(values[0].dtype)

    def weigh_output(self, values: Values, weights: Weights, site: int, y: Tensor) -> Weights:
        unit = inverse_rms(y, self.eps)
        return (1 + self.keen * self.size[site]) * unit if len(self.size) else unit

    def scatter(self, values: Values, weights: Weights, site: int, h: Tensor, y: Tensor) -> Values:
        return ((h + weights * y).to(stream_dtype(h, y)), *values[1:])
