"""Where the sublayers of the lab's model come from: its own, or a model type of transformers."""

from attnres.model.backbones._backbone import Backbone, Context, sublayer_name
from attnres.model.backbones.borrowed import Borrowed
from attnres.model.backbones.lab import Lab
from attnres.model.config import TransformerConfig

__all__ = ["Backbone", "Context", "check_backbone", "make_backbone", "sublayer_name"]


def make_backbone(config: TransformerConfig) -> Backbone:
    """The backbone that `config.backbone` names. Raises UsageError on sizes or options that it does not take."""
    check_backbone(config)
    return _class_of(config)(config)


def check_backbone(config: TransformerConfig) -> None:
    """Raise UsageError on what is wrong with the backbone of `config`, as far as it shows without transformers."""
    _class_of(config).check(config)


def _class_of(config: TransformerConfig) -> type[Backbone]:
    return Lab if config.backbone == "lab" else Borrowed
