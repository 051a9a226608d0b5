"""A decoder with a connection in the names of Transformers, as `attnres.hf.attach` makes it, and back."""

from __future__ import annotations

import re
from typing import Any

HERE, THERE = "depth.connection.", "model.connection."
NORMS = ("attention_norm", "ffn_norm")
"""What torchtitan calls the norms of a block's halves."""


def adapting(family: type[Any]) -> type[Any]:
    """The adapter of a family's models with a connection: the family's own for all but the connection."""

    class Adapter(family):
        def to_hf(self, state_dict: dict[str, Any]) -> dict[str, Any]:
            own = {THERE + name.removeprefix(HERE): t for name, t in state_dict.items() if name.startswith(HERE)}
            rest = {in_block(name): t for name, t in state_dict.items() if not name.startswith(HERE)}
            return {**super().to_hf(rest), **own}

        def from_hf(self, hf_state_dict: dict[str, Any]) -> dict[str, Any]:
            own = {HERE + name.removeprefix(THERE): t for name, t in hf_state_dict.items() if name.startswith(THERE)}
            rest = {name: t for name, t in hf_state_dict.items() if not name.startswith(THERE)}
            return {**{in_halves(name): t for name, t in super().from_hf(rest).items()}, **own}

    return Adapter


def in_block(name: str) -> str:
    """The name that torchtitan's own model has for a half's parameter: layers.5.norm is layers.2.ffn_norm."""

    def block(match: re.Match[str]) -> str:
        index, half = divmod(int(match[1]), 2)
        return f"layers.{index}.{NORMS[half] if match[2] == 'norm' else match[2]}."

    return re.sub(r"^layers\.(\d+)\.(\w+)\.", block, name)


def in_halves(name: str) -> str:
    """The other way: layers.2.ffn_norm is layers.5.norm."""

    def half(match: re.Match[str]) -> str:
        second = match[2] in ("ffn_norm", "feed_forward", "moe")
        return f"layers.{2 * int(match[1]) + second}.{'norm' if match[2] in NORMS else match[2]}."

    return re.sub(r"^layers\.(\d+)\.(\w+)\.", half, name)
