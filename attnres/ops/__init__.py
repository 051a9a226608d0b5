"""Depth attention as operators: one signature, several backends."""

from attnres.ops.backends import is_fused
from attnres.ops.cpu import trim
from attnres.ops.module import DepthAttention
from attnres.ops.norm import Norm, plain_norm
from attnres.ops.operators import (
    Backend,
    add_both,
    add_normalised,
    attend,
    attend_blocks,
    depth_attention,
    merge_partial,
    normalise,
    normalise_backward,
    read,
    read_one,
    takes_norm,
)
from attnres.ops.reference import depth_scores, depth_weights, inverse_rms, widen

__all__ = [
    "Backend",
    "DepthAttention",
    "Norm",
    "add_both",
    "add_normalised",
    "attend",
    "attend_blocks",
    "depth_attention",
    "depth_scores",
    "depth_weights",
    "inverse_rms",
    "is_fused",
    "merge_partial",
    "normalise",
    "normalise_backward",
    "plain_norm",
    "read",
    "read_one",
    "takes_norm",
    "trim",
    "widen",
]
