"""What hyper-connections share: n residual streams, read, mixed and written by small matrices."""

from __future__ import annotations

import torch
from torch import Tensor

from attnres.connections.base import Connection, Values, Weights, refuse_no_stream
from attnres.errors import check_count


class Streams(Connection):
    """h = H_pre X;  X <- H_res X + H_post^T y,  with X in R^{n x d} and X = (v_0, .., v_0) at the start.

    `weigh` of a subclass returns (H_pre [..., n], H_res [..., n, n] or None for the identity, H_post [..., n]).
    The readout is the sum over the streams. M[l, i+1] = H_pre_l H_res_{l-1} .. H_res_{i+1} H_post_i.
    """

    def __init__(self, dim: int, sublayers: int, streams: int) -> None:
        super().__init__(dim, sublayers)
        check_count("streams", streams)
        self.streams = streams

    def start(self, x: Tensor) -> Values:
        refuse_no_stream(x)
        return (x.unsqueeze(-2).expand(*x.shape[:-1], self.streams, x.shape[-1]),)

    def gather(self, values: Values, weights: Weights, site: int) -> Tensor:
        (streams,) = values
        if site == self.sublayers:
            return streams.sum(-2)
        pre, _, _ = weights
        return (pre.unsqueeze(-1) * streams).sum(-2).to(streams.dtype)

    def scatter(self, values: Values, weights: Weights, site: int, h: Tensor, y: Tensor) -> Values:
        (streams,) = values
        _, res, post = weights
        if res is None:
            carried = streams
        else:
            dtype = torch.promote_types(res.dtype, streams.dtype)
            carried = torch.matmul(res.to(dtype), streams.to(dtype))
        return ((carried + post.unsqueeze(-1) * y.unsqueeze(-2)).to(streams.dtype),)
