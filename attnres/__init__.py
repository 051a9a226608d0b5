"""Attention Residuals and other residual connections for PyTorch."""

from typing import TYPE_CHECKING, Any

from attnres.errors import LAB, install_command
from attnres.lazy import on_first_use
from attnres.version import __version__ as __version__

if TYPE_CHECKING:
    from attnres.analysis import depth_profile
    from attnres.connections import Connection, connection_names, make_connection, mixing_matrix, param_groups
    from attnres.connections.rules.block import Block as BlockAttnRes
    from attnres.connections.rules.full import Full as AttnRes
    from attnres.errors import UsageError
    from attnres.model import Transformer, TransformerConfig
    from attnres.ops import DepthAttention, depth_attention
    from attnres.report import plot_depth_matrix
    from attnres.train import load_run

__all__ = [
    "AttnRes",
    "BlockAttnRes",
    "Connection",
    "DepthAttention",
    "Transformer",
    "TransformerConfig",
    "UsageError",
    "connection_names",
    "depth_attention",
    "depth_profile",
    "load_run",
    "make_connection",
    "mixing_matrix",
    "param_groups",
    "plot_depth_matrix",
]

_on_first_use = on_first_use(__name__)


def __getattr__(name: str) -> Any:
    try:
        return _on_first_use(name)
    except ModuleNotFoundError as error:
        if error.name in LAB:
            error.msg = f"{__name__}.{name} needs {error.name}; {install_command('lab')}"
        raise
