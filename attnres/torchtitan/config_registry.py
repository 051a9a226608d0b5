"""torchtitan's configurations with a connection, FAMILY_CONNECTION_SIZE: `--config llama3_block_debug`.

The connection may have options: `--config llama3_block:block_size=8_debug`. The rest is torchtitan's own configuration
of that family and size, or of the nearest size that has one, and its options follow it on the command line.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from torchtitan.models.llama3 import config_registry as llama3
from torchtitan.models.qwen3 import config_registry as qwen3
from torchtitan.trainer import Trainer

from attnres.connections import connection_names
from attnres.errors import UsageError
from attnres.torchtitan.families import connected


class Preset(NamedTuple):
    """torchtitan's name of the model, the configuration that trains one like it, and the folder of its tokenizer."""

    flavor: str
    training: Callable[[], Trainer.Config]
    assets: str | None


SIZES = {
    ("llama3", "debug"): Preset("debugmodel", llama3.llama3_debugmodel, None),
    ("llama3", "1b"): Preset("1B", llama3.llama3_8b, "./assets/hf/Llama-3.2-1B"),
    ("llama3", "8b"): Preset("8B", llama3.llama3_8b, None),
    ("qwen3", "debug"): Preset("debugmodel", qwen3.qwen3_debugmodel, None),
    ("qwen3", "1b"): Preset("1.7B", qwen3.qwen3_1_7b, None),
    ("qwen3", "8b"): Preset("8B", qwen3.qwen3_14b, "./assets/hf/Qwen3-8B"),
    ("qwen3-moe", "debug"): Preset("debugmodel_moe", qwen3.qwen3_moe_debug, None),
    ("qwen3-moe", "30b"): Preset("30B-A3B", qwen3.qwen3_30b_a3b, None),
}


def configuration(family: str, connection: str, size: str) -> Trainer.Config:
    """The configuration with a connection in place of the residual, and optimizer groups for it.

    Raises:
        UsageError: an unknown family, size, connection or option.
    """
    if (family, size) not in SIZES:
        raise UsageError(f"no {family} of size {size}; there are {', '.join('_'.join(key) for key in SIZES)}")
    flavor, training, assets = SIZES[family, size]
    config = connected(training(), family, flavor, connection)
    config.hf_assets_path = assets or config.hf_assets_path
    return config


def __getattr__(name: str) -> Callable[[], Trainer.Config]:
    family, _, rest = name.partition("_")
    connection, _, size = rest.rpartition("_")
    if name.startswith("_") or not connection:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; a configuration is llama3_block_debug")
    return partial(configuration, family, connection, size)


def __dir__() -> list[str]:
    return [f"{family}_{name}_{size}" for family, size in SIZES for name in connection_names()]
