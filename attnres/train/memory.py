"""Memory as the system counts it: how much there is, its peak, and whether it ran out."""

from __future__ import annotations

import resource
import sys
from contextlib import suppress
from pathlib import Path

import torch


class PeakMemory:
    """Counts from its construction on. CUDA: the peak of what torch allocated.

    CPU: the highest resident set since then, above the one at the start. Where the system cannot reset its high-water
    mark (all but Linux), an earlier, higher one of the same process hides what happens below it.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
            return
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM, see proc(5)
        self._start = _status("VmRSS") or _high_water()

    def bytes(self) -> int:
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        return max(0, (_status("VmHWM") or _high_water()) - self._start)


def _status(field: str) -> int | None:
    """A size of this process in bytes from Linux' /proc, or None on other systems."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(field + ":")), None)


def _high_water() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
