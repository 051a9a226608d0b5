"""What should carry information through depth? Attention Residuals and every other residual, side by side."""

from attnres.analysis import mixing_matrix
from attnres.connections import Connection, connection_names, make_connection
from attnres.errors import UsageError
from attnres.model import Transformer, TransformerConfig
from attnres.version import __version__ as __version__

__all__ = [
    "Connection",
    "Transformer",
    "TransformerConfig",
    "UsageError",
    "connection_names",
    "make_connection",
    "mixing_matrix",
]
