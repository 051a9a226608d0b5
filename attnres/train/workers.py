"""How many runs at a time."""

from __future__ import annotations

import os


def default_workers() -> int:
    """One worker for each core that this process may use."""
    return max(1, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
