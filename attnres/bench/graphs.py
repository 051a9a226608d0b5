"""What only a CUDA device has: a step captured as a graph, and the most memory that a step held.

On other devices a captured step is the step itself, so that what uses it runs in tests.
"""

from __future__ import annotations

from typing import Any

import torch

from attnres.bench.measure import Run

WARM_UP = 3
"""Runs before a capture: they compile, and tune, what may do neither inside one."""


def new_pool(device: torch.device) -> Any:
    """Memory that several graphs may share, because none is replayed while another runs."""
    return torch.cuda.graph_pool_handle() if device.type == "cuda" else None


def captured(step: Run, device: torch.device, pool: Any = None) -> Run:
    """Capture the step, all launches of which are then one call without Python in between."""
    if device.type != "cuda":
        return step
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_UP):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        step()

    def replay(step: Run = step) -> None:  # held: the graph reads and writes its tensors where they are
        graph.replay()

    return replay


def peak_bytes(step: Run, device: torch.device) -> int | None:
    """The most that a step adds to the memory that is taken already; None where the device does not count it."""
    if device.type != "cuda":
        return None
    step()
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    step()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before
