"""What should carry information through depth? Attention Residuals and every other residual, side by side."""

import importlib
from typing import TYPE_CHECKING, Any

from attnres.version import __version__ as __version__

if TYPE_CHECKING:
    from attnres.connections import Connection, connection_names, make_connection, mixing_matrix
    from attnres.errors import UsageError
    from attnres.model import Transformer, TransformerConfig

__all__ = [
    "Connection",
    "Transformer",
    "TransformerConfig",
    "UsageError",
    "connection_names",
    "make_connection",
    "mixing_matrix",
]

# Imported on first use: torch takes seconds, which `attnres --help` and a Ctrl-C at the start should not wait for.
_HOMES = {
    "Connection": "connections",
    "Transformer": "model",
    "TransformerConfig": "model",
    "UsageError": "errors",
    "connection_names": "connections",
    "make_connection": "connections",
    "mixing_matrix": "connections",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
