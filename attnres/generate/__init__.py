"""Prefill and decode with a key/value cache."""

from attnres.generate.decode import generate, sample

__all__ = ["generate", "sample"]
