"""Where the sublayers of the lab's model come from: its own, or a model type of Transformers."""

from typing import TYPE_CHECKING

from attnres.lazy import on_first_use
from attnres.model.modelconfig import TransformerConfig

if TYPE_CHECKING:
    from attnres.model.backbones._backbone import Backbone, Context, bound, sublayer_name

__all__ = ["Backbone", "Context", "bound", "make_backbone", "sublayer_name"]

__getattr__ = on_first_use(__name__)


def make_backbone(config: TransformerConfig) -> "Backbone":
    """The backbone that `config.backbone` names. Raises UsageError on sizes or options that it does not take."""
    from attnres.model.backbones.borrowed import Borrowed
    from attnres.model.backbones.lab import Lab

    return (Lab if config.backbone == "lab" else Borrowed)(config)
