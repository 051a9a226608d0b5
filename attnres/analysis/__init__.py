"""Arrays and numbers from connections and trained models."""

from attnres.analysis.dynamics import depth_profile
from attnres.analysis.profile import DepthProfile, sublayer_names

__all__ = ["DepthProfile", "depth_profile", "sublayer_names"]
