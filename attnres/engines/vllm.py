"""The plug-in for vLLM: it serves attached models without a flag.

vLLM calls `register` in each of its processes (the entry point `vllm.general_plugins` in pyproject.toml) and runs the
models through its Transformers backend.
"""

from __future__ import annotations


def register() -> None:
    """Tell transformers, and so vLLM, of attached models."""
    import attnres.hf.classes  # noqa: F401  what makes the classes also registers them
