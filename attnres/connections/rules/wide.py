"""A wide residual: several streams with a learned number each to read, to write and to keep them; nothing is mixed."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from attnres.connections.base import Values, Weights, widen
from attnres.connections.streams import Streams
from attnres.errors import UsageError

MOST_FORGOTTEN, KEPT = 0.1, 0.999


class Wide(Streams):
    """h = sum_i sigmoid(a_i) X_i;  X_i <- r_i X_i + 2 sigmoid(b_i) y;  read out as it is read, by a of its own.

    At the start sigmoid(a_i) = 1/n and b = linspace(-spread, spread), so that the mean of the streams, which is what
    is read, is the plain residual: the writes 2 sigmoid(b_i) differ, and their mean is one. r_i = 1; with
    retention=True r_i = 1 - 0.1 sigmoid(-c_i), learned, 0.999 at the start, which no longer is the plain residual.
    Shapes: X [..., n, dim]; a, b, c [n] per site; no weight depends on the input. Values: X.
    Source: the "streamwise" wide residual of Mistral and NVIDIA (Megatron-LM pull requests 6716 and 7579).
    """

    def __init__(
        self, dim: int, sublayers: int, streams: int = 4, spread: float = 0.01, retention: bool = False
    ) -> None:
        super().__init__(dim, sublayers, streams)
        if streams < 2:
            raise UsageError("wide starts with read weights of 1/streams, which must be < 1; give 2 streams or more")
        even, forgotten = -math.log(streams - 1), (1 - KEPT) / MOST_FORGOTTEN
        self.read = nn.ParameterList(torch.full((streams,), even) for _ in range(sublayers + 1))
        self.write = nn.ParameterList(torch.linspace(-spread, spread, streams) for _ in range(sublayers))
        kept = math.log((1 - forgotten) / forgotten)
        self.keep = nn.ParameterList(torch.full((streams,), kept) for _ in range(sublayers)) if retention else None

    def weigh(self, values: Values, site: int) -> Weights:
        dtype = widen(values[0]).dtype

        def share(logits: Tensor) -> Tensor:
            return torch.sigmoid(logits.to(torch.promote_types(logits.dtype, dtype)))

        if site == self.sublayers:
            return share(self.read[site]), None, None
        keep = None if self.keep is None else 1 - MOST_FORGOTTEN * share(-self.keep[site])
        return share(self.read[site]), keep, 2 * share(self.write[site])

    def gather(self, values: Values, weights: Weights, site: int) -> Tensor:
        (streams,) = values
        return (weights[0].unsqueeze(-1) * streams).sum(-2).to(streams.dtype)

    def scatter(self, values: Values, weights: Weights, site: int, h: Tensor, y: Tensor) -> Values:
        (streams,), (_, keep, write) = values, weights
        kept = streams if keep is None else keep.unsqueeze(-1) * streams
        return ((kept + write.unsqueeze(-1) * y.unsqueeze(-2)).to(streams.dtype),)
