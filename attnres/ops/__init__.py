"""Depth attention as operators: one signature, several backends."""

from attnres.ops.reference import depth_attention, depth_weights, widen

__all__ = ["depth_attention", "depth_weights", "widen"]
