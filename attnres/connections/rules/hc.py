"""Hyper-Connections: several residual streams, mixed by learned and input-dependent matrices."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from attnres.connections.base import Values, Weights, inverse_rms, widen
from attnres.connections.streams import Streams


class HC(Streams):
    """h = sum_s Am[s] X_s;  X'_t = sum_s Ar[s,t] X_s + beta_t y;  read out by the sum over streams.

    Static parts: Am = e_{l mod n}, Ar = I, beta = 1. With `dynamic`, each gets scale * tanh(RMSNorm(X; g) W) added,
    scale = 0.01 and W = 0 at the start. At the start every site is the plain residual read from one stream.
    Source: Zhu et al. 2024 (2409.19606), appendix J, with RMSNorm for LayerNorm.
    """

    def __init__(self, dim: int, sublayers: int, streams: int = 4, dynamic: bool = True, eps: float = 1e-6) -> None:
        super().__init__(dim, sublayers, streams)
        self.dynamic = dynamic
        self.eps = eps
        n = streams
        self.read = nn.ParameterList(torch.eye(n)[site % n] for site in range(sublayers))
        self.carry = nn.ParameterList(torch.eye(n) for _ in range(sublayers))
        self.write = nn.ParameterList(torch.ones(n) for _ in range(sublayers))
        if dynamic:
            self.gain = nn.ParameterList(torch.ones(dim) for _ in range(sublayers))
            self.read_carry_fn = nn.ParameterList(torch.zeros(1 + n, dim) for _ in range(sublayers))
            self.read_carry_scale = nn.ParameterList(torch.full((1,), 0.01) for _ in range(sublayers))
            self.write_fn = nn.ParameterList(torch.zeros(dim) for _ in range(sublayers))
            self.write_scale = nn.ParameterList(torch.full((1,), 0.01) for _ in range(sublayers))

    def weigh(self, values: Values, site: int) -> Weights:
        if site == self.sublayers:
            return ()
        streams = widen(values[0])
        read, carry, write = (widen(p[site]) for p in (self.read, self.carry, self.write))
        if self.dynamic:
            normed = self._normalise(streams, site)
            mixing = torch.tanh(torch.matmul(normed, self.read_carry_fn[site].to(normed).mT))  # [..., n, 1 + n]
            mixing = mixing * self.read_carry_scale[site]
            read = read + mixing[..., 0]
            carry = carry + mixing[..., 1:]
            written = torch.tanh(torch.matmul(normed, self.write_fn[site].to(normed)))
            write = write + written * self.write_scale[site]
        return read, carry.mT, write

    def _normalise(self, streams: Tensor, site: int) -> Tensor:
        return streams * inverse_rms(streams, self.eps) * self.gain[site]
