"""The lab's own small transformer: any connection between the same sublayers."""

from typing import TYPE_CHECKING

from attnres.lazy import on_first_use

if TYPE_CHECKING:
    from attnres.model.backbones import sublayer_name
    from attnres.model.counts import ParameterCounts, count_parameters
    from attnres.model.init import parameter_roles
    from attnres.model.modelconfig import TransformerConfig
    from attnres.model.transformer import Transformer

__all__ = [
    "ParameterCounts",
    "Transformer",
    "TransformerConfig",
    "count_parameters",
    "parameter_roles",
    "sublayer_name",
]

__getattr__ = on_first_use(__name__)
