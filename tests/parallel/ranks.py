"""A few processes that stay up and run one case after another, each on a process group of the size that it asks for."""

from __future__ import annotations

import multiprocessing
import os
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

TIME_LIMIT = 200.0
"""For one call, and for one rank that waits for another: it only ends what hangs."""
GRACE = 60.0
"""How long the others have to notice that one rank failed. They see a closed connection at once."""

CONTEXT = multiprocessing.get_context("forkserver")
"""One server imports torch once and forks all processes, before it has any thread."""
CONTEXT.set_forkserver_preload(
    [
        *("pytest", "attnres.cli.train", "attnres.train.distributed", "attnres.parallel.pipeline"),
        "tests.parallel.ranks",
        # What the first step would import in each of them, for 1.5 s.
        *("torch._dynamo", "torch._dynamo.backends.debugging", "torch._functorch.aot_autograd"),
    ]
)


class Ranks:
    """`world` processes on gloo. `run` calls a function on the first `ranks` of them and returns what each returned.

    Whatever goes wrong ends all of them, and the next `run` starts new ones; nothing hangs for longer than the limit.
    """

    def __init__(self, world: int, folder: Path) -> None:
        self.world = world
        self.folder = folder
        self._processes: list[Any] = []
        self._pipes: list[Connection] = []
        self._starts = 0

    def run(self, function: Callable[..., Any], *args: Any, ranks: int, limit: float = TIME_LIMIT) -> list[Any]:
        """function(group, *args) on ranks 0 .. ranks - 1. Raises the ranks' errors, as text, or TimeoutError."""
        if not self._processes:
            self._start()
        for pipe in self._pipes[:ranks]:
            pipe.send((function, args, ranks))
        results: dict[int, Any] = {}
        errors: list[str] = []
        waiting = dict(zip(self._pipes, range(ranks), strict=False))
        deadline = time.monotonic() + limit
        while waiting and (ready := wait(waiting, max(0.0, deadline - time.monotonic()))):
            for pipe in ready:
                rank = waiting.pop(pipe)
                try:
                    results[rank], error = pipe.recv()
                except EOFError:
                    error = f"rank {rank} is gone"
                errors += [error] if error else []
            if errors:
                deadline = min(deadline, time.monotonic() + GRACE)
        if errors or waiting:
            self.stop()
        if errors:
            raise RuntimeError("\n".join([*errors, *(f"rank {rank} went on waiting" for rank in waiting.values())]))
        if waiting:
            raise TimeoutError(f"ranks {list(waiting.values())} did not return within {limit} s")
        return [results[rank] for rank in range(ranks)]

    def stop(self) -> None:
        for process in self._processes:
            process.kill()
            process.join()
        self._processes, self._pipes = [], []

    def _start(self) -> None:
        self._starts += 1
        rendezvous = self.folder / f"rendezvous-{self._starts}"
        for rank in range(self.world):
            here, there = CONTEXT.Pipe()
            process = CONTEXT.Process(target=_serve, args=(rank, self.world, str(rendezvous), there), daemon=True)
            process.start()
            there.close()
            self._processes.append(process)
            self._pipes.append(here)


def _serve(rank: int, world: int, rendezvous: str, pipe: Connection) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=world, timeout=timedelta(seconds=TIME_LIMIT)
    )
    groups = [dist.new_group(list(range(size))) for size in range(1, world + 1)]
    with suppress(EOFError):
        while True:
            function, args, ranks = pipe.recv()
            try:
                pipe.send((function(groups[ranks - 1], *args), None))
            except Exception:
                pipe.send((None, f"rank {rank}:\n{traceback.format_exc()}"))
                os._exit(1)  # as a rank of torchrun would; its peers see the connection close
