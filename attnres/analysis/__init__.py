"""From connections and trained models to arrays and tables."""

from attnres.analysis.dynamics import depth_profile
from attnres.analysis.profile import DepthProfile, sublayer_names

__all__ = ["DepthProfile", "depth_profile", "sublayer_names"]
