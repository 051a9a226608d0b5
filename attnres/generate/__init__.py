"""Prefill and decode with a key/value cache."""

from attnres.generate.cache import KVCache
from attnres.generate.decode import generate, sample

__all__ = ["KVCache", "generate", "sample"]
