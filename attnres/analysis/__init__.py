"""Arrays and numbers from connections and trained models; changes of what depth reads in them."""

from typing import TYPE_CHECKING

from attnres.lazy import on_first_use

if TYPE_CHECKING:
    from attnres.analysis.changes import Change, Mute, Noise, Off, Patch, Pin, Plain, Scale, Uniform
    from attnres.analysis.dynamics import depth_profile
    from attnres.analysis.interventions import intervene
    from attnres.analysis.profile import DepthProfile, sublayer_names
    from attnres.analysis.removal import added_losses
    from attnres.analysis.tracing import Effect, Explanation, Trace, explain, removal_effects, trace

__all__ = [
    "Change",
    "DepthProfile",
    "Effect",
    "Explanation",
    "Mute",
    "Noise",
    "Off",
    "Patch",
    "Pin",
    "Plain",
    "Scale",
    "Trace",
    "Uniform",
    "added_losses",
    "depth_profile",
    "explain",
    "intervene",
    "removal_effects",
    "sublayer_names",
    "trace",
]

__getattr__ = on_first_use(__name__)
