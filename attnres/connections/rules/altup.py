"""AltUp: several streams, of which a transformer layer computes one and predicts the others."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnres.connections.base import Values, Weights, inverse_rms, widen
from attnres.connections.streams import Streams
from attnres.errors import UsageError


class AltUp(Streams):
    """Before a transformer layer P_i = X_i + sum_j A_ij X_j; attention reads h = P_a, the MLP u = P_a + y of attention,
    and behind it X_i = P_i + c_i (u + y - P_a): the active stream a is computed, the others are corrected by its step.

    A = W_p m and c = 1 + W_c m with a router of its own each, m = tanh(R RMSNorm(z; g) / dim) in R^n: z is X_a for A,
    and u + y for c. a goes round with the layers unless `active` names it. The readout is the mean over the streams; an
    MLP that is missing at the end has y = 0 and c = 1. At the start R = 0, W_c is the identity and W_p takes m to
    diag(m), so that it is the plain residual.
    laurel=True: u = (P_a + RMSNorm(P_a; k) + y) / sqrt(2), which is LAuReL (2411.07501) as far as it is a residual; its
    low-rank map of the normalised input mixes channels and is part of a sublayer.
    Shapes: X, P [..., n, dim]; R [n, dim], g [dim] per site; W_p [n, n, n], k [dim] per attention, W_c [n, n] per MLP.
    Values: X; before an MLP P and u.
    Source: AltUp (2301.13310), recycled, with the coefficients of Gemma 3n (`Gemma3nTextAltUp` of transformers), which
    ties a layer's two routers, keeps a = 0 and starts and reads out the others by maps of dim x dim.
    """

    per_layer = True

    def __init__(
        self,
        dim: int,
        sublayers: int,
        streams: int = 4,
        active: int | None = None,
        laurel: bool = False,
        eps: float = 1e-6,
    ) -> None:
        super().__init__(dim, sublayers, streams)
        if active is not None and active not in range(streams):
            raise UsageError(f"active must be one of the {streams} streams, 0 to {streams - 1}, not {active!r}")
        self.active = active
        self.eps = eps
        one = torch.eye(streams)
        self.router = nn.ParameterList(torch.zeros(streams, dim) for _ in range(sublayers))
        self.router_gain = nn.ParameterList(torch.ones(dim) for _ in range(sublayers))
        self.predict = nn.ParameterList(None if site % 2 else one.diag_embed() for site in range(sublayers))
        self.correct = nn.ParameterList(one.clone() if site % 2 else None for site in range(sublayers))
        gains = (None if site % 2 else torch.ones(dim) for site in range(sublayers))
        self.laurel_gain = nn.ParameterList(gains) if laurel else None

    def value_count(self, site: int) -> int:
        return 1 + site % 2

    def _active(self, site: int) -> int:
        return site // 2 % self.streams if self.active is None else self.active

    def _modalities(self, x: Tensor, site: int) -> Tensor:
        normed = widen(x) * inverse_rms(x, self.eps) * self.router_gain[site]
        return torch.tanh(F.linear(normed, self.router[site].to(normed.dtype)) / self.dim)

    def weigh(self, values: Values, site: int) -> Weights:
        if site == self.sublayers or site % 2:
            return ()
        streams = widen(values[0])
        m = self._modalities(streams[..., self._active(site), :], site)
        mixing = F.linear(m, self.predict[site].to(m.dtype).flatten(0, 1)).unflatten(-1, (self.streams, self.streams))
        mixing = mixing + torch.eye(self.streams, dtype=m.dtype, device=m.device)
        if self.laurel_gain is None:
            return mixing, None
        predicted = self._predicted(mixing, streams, site)
        return mixing, inverse_rms(predicted, self.eps) * self.laurel_gain[site]

    def _predicted(self, mixing: Tensor, streams: Tensor, site: int) -> Tensor:
        return (mixing[..., self._active(site), :].unsqueeze(-1) * streams).sum(-2)

    def gather(self, values: Values, weights: Weights, site: int) -> Tensor:
        streams, *inside = values
        if site == self.sublayers:
            step = (u - streams[..., self._active(site), :] for u in inside)  # of a layer without its MLP
            return sum(step, streams.mean(-2))
        return inside[0] if inside else self._predicted(weights[0], streams, site).to(streams.dtype)

    def weigh_output(self, values: Values, weights: Weights, site: int, y: Tensor) -> Weights:
        if site % 2 == 0:
            return weights
        m = self._modalities(values[1] + y, site)
        return 1 + F.linear(m, self.correct[site].to(m.dtype))

    def scatter(self, values: Values, weights: Weights, site: int, h: Tensor, y: Tensor) -> Values:
        streams = values[0]
        if site % 2 == 0:
            mixing, laurel = weights
            dtype = torch.promote_types(mixing.dtype, streams.dtype)
            predicted = torch.matmul(mixing.to(dtype), streams.to(dtype))
            u = h + y if laurel is None else ((1 + laurel) * h + y) / 2**0.5
            return predicted.to(streams.dtype), u.to(streams.dtype)
        step = h + y - streams[..., self._active(site), :]
        return ((streams + weights.unsqueeze(-1) * step.unsqueeze(-2)).to(streams.dtype),)
