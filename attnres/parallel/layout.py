"""How many processes do what: the options of a run on more than one device."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Annotated

from tyro.conf import arg

from attnres.errors import UsageError, check_count
from attnres.parallel.schedule import Schedule, default_schedule, even_cuts


@dataclass(frozen=True)
class Layout:
    """Where a run is computed. It never decides what is computed: a run may go on with another one."""

    pipeline: int = 1
    """Pipeline stages P: the depth is cut over that many processes."""
    virtual: Annotated[int, arg(aliases=["--virtual-stages"])] = 1
    """Virtual stages V of each process of the pipeline; chunk c of the depth is on stage c mod P. (Behind torchrun say
    --virtual-stages: it takes --virtual for an option of its own.)"""
    schedule: Schedule | None = None
    """The order of a pipeline's work; interleaved-1f1b when not given, or 1f1b where there is one virtual stage."""
    shard: int | None = None
    """Processes over which weights, gradients and optimizer state are cut (FSDP2); when not given, all that pipeline
    and replicate leave."""
    replicate: int = 1
    """Copies of that, each with its own part of every batch (data parallel)."""
    timeout: float = 300.0
    """Seconds that a process waits for the others in a step before it gives up."""

    def __post_init__(self) -> None:
        for name in ("pipeline", "virtual", "shard", "replicate"):
            value = getattr(self, name)
            if value is not None:
                check_count(name, value)
        if not (math.isfinite(self.timeout) and self.timeout > 0):
            raise UsageError(f"timeout must be a positive number of seconds, not {self.timeout}")
        if self.virtual > 1 and self.pipeline == 1:
            raise UsageError("virtual stages are a pipeline's; give --pipeline 2 or more too")

    @property
    def data_parallel(self) -> int:
        """Into how many parts each batch is cut."""
        return self.replicate * (self.shard or 1)

    @property
    def order(self) -> Schedule:
        """The schedule, also where none was named."""
        return self.schedule or default_schedule(self.virtual)

    def fit(self, processes: int) -> Layout:
        """This layout with `shard` filled in. Raises UsageError if it is not one for that many processes."""
        others = self.pipeline * self.replicate
        shard = max(1, processes // others) if self.shard is None else self.shard
        if others * shard != processes:
            raise UsageError(
                f"pipeline {self.pipeline} x replicate {self.replicate} x shard {shard} is {others * shard} processes, "
                f"but there are {processes}; start as many with torchrun --nproc-per-node, or change one of the three"
            )
        return dataclasses.replace(self, shard=shard)

    def check(self, sublayers: int, batch_size: int) -> None:
        """Raise UsageError if a model of that many sublayers, or a batch, cannot be cut like this."""
        even_cuts(sublayers, self.pipeline * self.virtual)
        if batch_size % self.data_parallel:
            raise UsageError(
                f"batch_size {batch_size} does not divide over {self.data_parallel} data-parallel processes "
                f"(replicate {self.replicate} x shard {self.shard}); make it a multiple of {self.data_parallel}"
            )


ONE_PROCESS = Layout()
