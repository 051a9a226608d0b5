"""Gated Residual: several streams, read through a gate per channel that sees them all, and not mixed."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnres.connections.base import Values, Weights, inverse_rms, widen
from attnres.connections.streams import Streams
from attnres.errors import check_count

STD = 0.02


class GatedResidual(Streams):
    """U_i = RMSNorm(X_i; g_i);  h = (1/n) sum_i G_i * U_i,  G = sigmoid(W_up SiLU(W_down vec(U) / n)) per channel;
    X_i <- X_i + s_i y,  s = 2 sigmoid(W_write vec(U) / n).

    What is read is normalised already: sublayers have no norm of their own, and the readout is one more read. The
    weights of h are G g / (n rms(X_i)). At the start g = 1, and the matrices are drawn at 0.02, by the site's number
    alone: from equal streams and matrices of zeros the streams would stay equal for ever.
    Shapes: X, U, G, g [.., n, dim]; W_down [rank, n dim], W_up [n dim, rank], W_write [n, n dim], s [.., n]. The rank
    is dim / 8 unless it is given. Values: X. M differs from channel to channel.
    Source: Gated Residual (2608.30320), `Qwen4ExpTextGatedResidual` of transformers' qwen4_exp, whose norm has 1 + g.
    """

    pre_norm = False

    def __init__(self, dim: int, sublayers: int, streams: int = 4, rank: int | None = None, eps: float = 1e-6) -> None:
        super().__init__(dim, sublayers, streams)
        rank = max(1, dim // 8) if rank is None else rank
        check_count("rank", rank)
        self.eps = eps
        wide = streams * dim
        self.gain = nn.ParameterList(torch.ones(streams, dim) for _ in range(sublayers + 1))
        self.down = nn.ParameterList(_drawn(3 * site, rank, wide) for site in range(sublayers + 1))
        self.up = nn.ParameterList(_drawn(3 * site + 1, wide, rank) for site in range(sublayers + 1))
        self.write = nn.ParameterList(_drawn(3 * site + 2, streams, wide) for site in range(sublayers))

    def weigh(self, values: Values, site: int) -> Weights:
        streams = widen(values[0])
        normalising = inverse_rms(streams, self.eps) * self.gain[site]  # [..., n, dim]
        u = (normalising * streams).flatten(-2) / self.streams
        hidden = F.silu(F.linear(u, self.down[site].to(u.dtype)))
        gate = torch.sigmoid(F.linear(hidden, self.up[site].to(u.dtype))).unflatten(-1, (self.streams, self.dim))
        read = gate * normalising / self.streams
        if site == self.sublayers:
            return read, None, None
        return read, None, 2 * torch.sigmoid(F.linear(u, self.write[site].to(u.dtype)))

    def gather(self, values: Values, weights: Weights, site: int) -> Tensor:
        (streams,) = values
        return (weights[0] * streams).sum(-2).to(streams.dtype)


def _drawn(seed: int, *shape: int) -> Tensor:
    """The same on every process and device, whatever was drawn before."""
    drawn = torch.randn(shape, generator=torch.Generator("cpu").manual_seed(seed), device="cpu")
    return torch.empty(shape).copy_(STD * drawn)
