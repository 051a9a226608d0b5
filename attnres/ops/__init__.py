"""Depth attention as operators: one signature, several backends."""

from attnres.ops.operators import Backend, attend, attend_blocks, depth_attention, merge_partial
from attnres.ops.reference import depth_weights, widen

__all__ = ["Backend", "attend", "attend_blocks", "depth_attention", "depth_weights", "merge_partial", "widen"]
