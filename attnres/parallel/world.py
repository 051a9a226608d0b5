"""The processes of a run: who they are, that they are the same program, and how they end together.

Started by torchrun (or anything that sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT), each process of a run is one
of a `World`. When one of them dies, the others find a closed connection at their next exchange, or wait no longer than
the timeout; torch's error ends them.
"""

from __future__ import annotations

import logging
import os
import secrets
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch

from attnres.errors import UsageError, first_line
from attnres.files import write_text
from attnres.parallel.layout import Layout

T = TypeVar("T")

FILE_TIMEOUT = timedelta(hours=1)
"""How long a process waits for the others' work on files: checkpoints, the corpus."""

SEE_SECONDS = 10.0
"""How long a network file system may take to show one machine what another has written."""


class World:
    """A run of one process: nobody to ask. `ManyProcesses` has the same methods."""

    rank = 0
    size = 1

    @property
    def main(self) -> bool:
        """Whether this process is the one that writes and prints."""
        return self.rank == 0

    def share(self, make: Callable[[], T]) -> T:
        """What `make` returns on the main process, on all of them."""
        return make()

    def any(self, flag: bool) -> bool:
        """Whether the flag is set on any process."""
        return flag

    def gather(self, value: T) -> list[T]:
        """Every process's value, by rank."""
        return [value]

    def together(self, action: Callable[[], T]) -> list[T]:
        """What the action returns on each process; what it raises on one is raised on all."""
        return [action()]

    def require_shared(self, folder: Path) -> None:
        """Raise UsageError unless all processes see the same folder."""

    def agree(self, facts: Mapping[str, str]) -> None:
        """Raise UsageError, naming the fact and the process, unless all processes have the same facts."""


class ManyProcesses(World):
    """One of several processes, with a process group that spans them all."""

    def __init__(self, layout: Layout, device: torch.device, rank: int, size: int) -> None:
        import torch.distributed as dist
        from torch.distributed.device_mesh import init_device_mesh

        assert layout.shard is not None
        self.layout = layout
        self.device = device
        self.rank, self.size = rank, size
        shape = (layout.pipeline, layout.replicate, layout.shard)
        self.mesh = init_device_mesh(device.type, shape, mesh_dim_names=("pipeline", "replicate", "shard"))
        # Waiting for a disk is not waiting for a peer: what is said about files has a limit of its own.
        self._about_files: Any = dist.new_group(backend="gloo", timeout=FILE_TIMEOUT)

    @property
    def data_rank(self) -> int:
        """Which part of each batch is this process's."""
        assert self.layout.shard is not None
        return self.mesh.get_local_rank("replicate") * self.layout.shard + self.mesh.get_local_rank("shard")

    def share(self, make: Callable[[], T]) -> T:
        import torch.distributed as dist

        box = [make() if self.main else None]
        dist.broadcast_object_list(box, src=0, group=self._about_files)
        return box[0]  # type: ignore[return-value]

    def any(self, flag: bool) -> bool:
        return self.sum(torch.tensor(float(flag))).item() > 0

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """The sum over all processes, on all of them; a new tensor."""
        import torch.distributed as dist

        total = tensor.detach().to(self.device).clone()
        dist.all_reduce(total)
        return total

    def gather(self, value: T) -> list[T]:
        import torch.distributed as dist

        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value, group=self._about_files)
        return values

    def to_main(self, value: T) -> list[T]:
        """Every process's value, by rank, on the main one; nothing on the others. One at a time: they may be large."""
        import torch.distributed as dist

        if not self.main:
            dist.send_object_list([value], dst=0, group=self._about_files)
            return []
        values: list[Any] = [value]
        for rank in range(1, self.size):
            dist.recv_object_list(box := [None], src=rank, group=self._about_files)
            values += box
        return values

    def together(self, action: Callable[[], T]) -> list[T]:
        """What the action returns on each process, by rank. An OSError or UsageError on any is raised on all."""
        mine: tuple[T | None, Exception | None]
        try:
            mine = action(), None
        except (OSError, UsageError) as error:
            mine = None, error
        everyone = self.gather(mine)
        for _, error in everyone:
            if error is not None:
                raise error
        return [result for result, _ in everyone]  # type: ignore[misc]

    def require_shared(self, folder: Path) -> None:
        """Raise UsageError, on all processes, unless every one sees what the main one writes into the folder now."""
        name = self.share(lambda: f".seen-{secrets.token_hex(8)}")  # never looked for before, so no system remembers it
        self.together(lambda: write_text(folder / name, "") if self.main else None)
        deadline = time.monotonic() + SEE_SECONDS
        while not (seen := (folder / name).exists()) and time.monotonic() < deadline:
            time.sleep(0.1)
        blind = [str(rank) for rank, sees in enumerate(self.gather(seen)) if not sees]
        if self.main:
            (folder / name).unlink()
        if blind:
            raise UsageError(
                f"{folder}: process {' and '.join(blind)} does not see what process 0 writes there; "
                "give a folder on a file system that all processes share"
            )

    def agree(self, facts: Mapping[str, str]) -> None:
        everyone = self.gather(dict(facts))
        for rank, theirs in enumerate(everyone):
            differing = [name for name in facts if theirs.get(name) != everyone[0].get(name)]
            if differing:
                raise UsageError(
                    f"process {rank} differs from process 0 in its {' and '.join(differing)}; "
                    "start all of them with the same command and the same installation"
                )


def processes() -> int:
    """How many processes torchrun has started for this run; 1 without it."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def is_main() -> bool:
    """Whether this process prints, as far as the environment tells."""
    return os.environ.get("RANK", "0") == "0"


def _stop_with_launcher() -> None:
    """Save and stop when torchrun is gone: nobody would start, watch or end this process any more."""
    launcher = os.getppid()

    def watch() -> None:
        while os.getppid() == launcher:
            time.sleep(1)
        os.kill(os.getpid(), signal.SIGTERM)

    if "TORCHELASTIC_RUN_ID" in os.environ:
        threading.Thread(target=watch, daemon=True).start()


@contextmanager
def join_world(layout: Layout, device: str) -> Iterator[World]:
    """Meet the other processes, and leave them in the end.

    Args:
        device: "cpu" (gloo) or "cuda" (NCCL).

    Raises:
        UsageError: the layout does not fit the number of processes, or not all of them come within the timeout.
    """
    layout = layout.fit(processes())
    if processes() == 1:
        yield World()
        return
    rank, size = int(os.environ["RANK"]), processes()
    _stop_with_launcher()

    import torch.distributed as dist
    from torch.distributed.distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    timeout = timedelta(seconds=layout.timeout)
    where = torch.device(device, int(os.environ.get("LOCAL_RANK", "0"))) if device == "cuda" else torch.device(device)
    if where.type == "cuda":
        torch.cuda.set_device(where)
    try:
        store, _, _ = next(iter(rendezvous("env://", rank, size, timeout=timeout)))
        # A restart by torchrun may find the keys of the attempt before it.
        store = PrefixStore(f"attempt-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
        backend = "nccl" if where.type == "cuda" else "gloo"
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timeout)
        world = ManyProcesses(layout, where, rank, size)
    except (dist.DistError, RuntimeError, ValueError) as error:
        raise UsageError(
            f"process {rank} of {size} has not met all the others within {layout.timeout:g} s ({first_line(error)}); "
            "see that every machine runs the command and reaches MASTER_ADDR, where MASTER_PORT must be free"
        ) from error
    # It prints the whole schedule when a connection breaks.
    logging.getLogger("torch.distributed.pipelining.schedules").setLevel(logging.CRITICAL)
    yield world
    dist.barrier()
    dist.destroy_process_group()
