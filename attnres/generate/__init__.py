"""Prefill and decode with a key/value cache."""

from attnres.generate.decode import generate, sample
from attnres.model.cache import KVCache

__all__ = ["KVCache", "generate", "sample"]
