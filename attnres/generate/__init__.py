"""Prefill and decode with a key/value cache; text that streams."""

from attnres.generate.decode import generate, sample
from attnres.generate.text import Continuation

__all__ = ["Continuation", "generate", "sample"]
