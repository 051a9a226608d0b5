"""Attention Residuals and other residual connections for PyTorch."""

import importlib
from typing import TYPE_CHECKING, Any

from attnres.errors import LAB, install_command
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

# Imported on first use: torch takes seconds, which `attnres --help` and a Ctrl-C at the start should not wait for.
_HOMES = {
    "AttnRes": "connections.rules.full:Full",
    "BlockAttnRes": "connections.rules.block:Block",
    "Connection": "connections",
    "DepthAttention": "ops",
    "Transformer": "model",
    "TransformerConfig": "model",
    "UsageError": "errors",
    "connection_names": "connections",
    "depth_attention": "ops",
    "depth_profile": "analysis",
    "load_run": "train",
    "make_connection": "connections",
    "mixing_matrix": "connections",
    "param_groups": "connections",
    "plot_depth_matrix": "report",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home, _, known_there = _HOMES[name].partition(":")
    try:
        return getattr(importlib.import_module(f"{__name__}.{home}"), known_there or name)
    except ModuleNotFoundError as error:
        if error.name in LAB:
            error.msg = f"{__name__}.{name} needs {error.name}; in the repository's folder: {install_command('lab')}"
        raise
