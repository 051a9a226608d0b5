"""The lab's own small transformer: any connection between the same sublayers."""

from attnres.model.config import TransformerConfig
from attnres.model.init import parameter_roles
from attnres.model.transformer import Transformer

__all__ = ["Transformer", "TransformerConfig", "parameter_roles"]
